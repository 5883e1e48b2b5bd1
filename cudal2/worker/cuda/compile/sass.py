"""What the instructions of a cubin are, as nvdisasm prints them.

nvdisasm parses bytes that a stranger chose, so it runs in the jail.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker.build import job, readable
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.sandbox import jail, seccomp

SASS_BYTES = 512 << 20
TOLD_BYTES = 300
KILLED = (-9, 137)
"""How a process ends that a machine without memory left kills."""

ANY_SLOT = -1
_INSTRUCTION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_CLOCK = re.compile(rb"\bSR_(?:CLOCK|GLOBALTIMER|GRIDID)\w*")
_ADDRESS = re.compile(rb"\bc\[0x4\]\[([^\]]*)\]")


class Unfinished(ValueError):
    """The disassembler was stopped, not the cubin at fault."""


class Sass(msgspec.Struct, frozen=True):
    """What a cubin's instructions are: each different operation with its modifiers, a read of a clock with its source.

    `slots` are the offsets in constant bank 4 that are read: where the addresses of global variables stand.
    """

    operations: frozenset[str]
    slots: frozenset[int]


def read(cubin: bytes, kind: jail.Kind, seconds: float) -> Sass:
    """What a cubin's instructions are, read within `seconds`.

    ValueError where nvdisasm cannot read them, the kind Unfinished where it was stopped; HarnessFault where there is no
    disassembler or no jail.
    """
    with listing(cubin, kind, seconds) as lines:
        return summarise(lines)


@contextmanager
def listing(
    cubin: bytes, kind: jail.Kind, seconds: float, options: tuple[str, ...] = ("-c", "-ndf")
) -> Iterator[BinaryIO]:
    """What nvdisasm with these options prints of a cubin; raises what `read` does."""
    program = toolchain.nvdisasm()
    if program is None:
        raise HarnessFault("nvdisasm, the CUDA disassembler, is not installed", toolchain.REMEDY)
    with job("read a cubin") as folder:
        (folder / "kernel.cubin").write_bytes(cubin)
        code = jail.run(
            kind,
            # The jail has no standard output and no error output; the shell gives them files.
            ["/bin/sh", "-c", 'exec "$0" "$@" kernel.cubin > sass 2> told', str(program), *options],
            seconds,
            readable=[] if program.is_relative_to("/usr") else [program.parent],
            writable=[folder],
            limits=jail.Limits(file_size=SASS_BYTES, cpu_seconds=int(seconds) + 1),
            filter_program=seccomp.toolchain(),
        )
        sass = folder / "sass"
        if code is None:
            raise Unfinished(f"the disassembler did not end within {seconds:g} s")
        if code in KILLED:
            raise Unfinished("the disassembler was killed")
        if code != 0 or sass.is_symlink() or not sass.is_file():
            raise ValueError(f"the disassembler ended with {code}{_told(folder / 'told')}")
        with sass.open("rb") as lines:
            yield lines


def _told(errors: Path) -> str:
    """The first line of what it complained of."""
    if errors.is_symlink() or not errors.is_file():
        return ""
    with errors.open("rb") as text:
        line = text.readline(TOLD_BYTES).decode(errors="replace").strip()
    return f": {readable(line, errors.parent)}" if line else ""


def summarise(lines: Iterable[bytes]) -> Sass:
    """What the lines of a listing say."""
    operations: set[str] = set()
    slots: set[int] = set()
    for line in lines:
        if hit := _INSTRUCTION.match(line):
            clock = _CLOCK.search(hit.group(2))
            operations.add((hit.group(1) + (b" " + clock.group() if clock else b"")).decode())
            slots.update(_slot(offset.decode()) for offset in _ADDRESS.findall(hit.group(2)))
    return Sass(frozenset(operations), frozenset(slots))


def _slot(offset: str) -> int:
    """The 8-byte slot of `c[0x4][0xc]`: 8; `RZ` is a zero, anything else is computed by the kernel: ANY_SLOT."""
    if offset == "RZ":
        return 0
    return int(offset, 16) & ~7 if re.fullmatch(r"0x[0-9a-f]+", offset) else ANY_SLOT
