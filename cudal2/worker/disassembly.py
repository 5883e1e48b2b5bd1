"""Runs a disassembler, which parses bytes that a stranger chose, in the jail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cudal2.worker.build import job, readable
from cudal2.worker.sandbox import jail, seccomp

LISTING_BYTES = 512 << 20
TOLD_BYTES = 300
KILLED = (-9, 137)
"""How a process ends that a machine without memory left kills."""


class Unfinished(ValueError):
    """The disassembler was stopped, not the code at fault."""


@contextmanager
def listing(command: Sequence[str], code: bytes, kind: jail.Kind, seconds: float) -> Iterator[BinaryIO]:
    """What `command` (the program's path, and options) prints of this code within `seconds`.

    ValueError where it cannot read it, the kind Unfinished where it was stopped; HarnessFault where there is no jail.
    """
    program = Path(command[0])
    with job("read built code") as folder:
        (folder / "code").write_bytes(code)
        ended = jail.run(
            kind,
            # The jail has no standard output and no error output; the shell gives them files.
            ["/bin/sh", "-c", 'exec "$0" "$@" code > listing 2> told', *command],
            seconds,
            readable=[] if program.is_relative_to("/usr") else [program.parent],
            writable=[folder],
            limits=jail.Limits(file_size=LISTING_BYTES, cpu_seconds=int(seconds) + 1),
            filter_program=seccomp.toolchain(),
        )
        found = folder / "listing"
        if ended is None:
            raise Unfinished(f"the disassembler did not end within {seconds:g} s")
        if ended in KILLED:
            raise Unfinished("the disassembler was killed")
        if ended != 0 or found.is_symlink() or not found.is_file():
            raise ValueError(f"the disassembler ended with {ended}{_told(folder / 'told')}")
        with found.open("rb") as lines:
            yield lines


def _told(errors: Path) -> str:
    """The first line of what it complained of."""
    if errors.is_symlink() or not errors.is_file():
        return ""
    with errors.open("rb") as text:
        line = text.readline(TOLD_BYTES).decode(errors="replace").strip()
    return f": {readable(line, errors.parent)}" if line else ""
