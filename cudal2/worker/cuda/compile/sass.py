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
_PARAMETER = re.compile(rb"\bc\[0x0\]\[([^\]]*)\]")
_CODE = re.compile(rb"^\.text\.(\S+):")
_LOADS = (b"LDC", b"ULDC", b"LDCU")
_WIDTHS = {b"U8": 1, b"S8": 1, b"U16": 2, b"S16": 2, b"64": 8, b"128": 16}
"""Bytes that a load of a constant reads, by its modifier; without one, and in other instructions, four."""


class Unfinished(ValueError):
    """The disassembler was stopped, not the cubin at fault."""


class Sass(msgspec.Struct, frozen=True):
    """What a cubin's instructions are: each different operation with its modifiers, a read of a clock with its source.

    `slots` are the offsets in constant bank 4 that are read: where the addresses of global variables stand.
    `parameters` has for each kernel and function how far it reads constant bank 0, where its parameters stand: the
    bytes before the end of what is read last, ANY_SLOT where a place is computed.
    """

    operations: frozenset[str]
    slots: frozenset[int]
    parameters: dict[str, int] = {}


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
    parameters: dict[str, int] = {}
    code = ""
    for line in lines:
        if hit := _INSTRUCTION.match(line):
            clock = _CLOCK.search(hit.group(2))
            operations.add((hit.group(1) + (b" " + clock.group() if clock else b"")).decode())
            slots.update(_slot(offset.decode()) for offset in _ADDRESS.findall(hit.group(2)))
            for offset in _PARAMETER.findall(hit.group(2)):
                place, far = _slot(offset.decode(), 1), parameters.get(code, 0)
                name, *modifiers = hit.group(1).split(b".")
                widths = [_WIDTHS[one] for one in modifiers if name in _LOADS and one in _WIDTHS]
                parameters[code] = ANY_SLOT if ANY_SLOT in (place, far) else max(far, place + (*widths, 4)[0])
        elif begins := _CODE.match(line):
            code = begins.group(1).decode(errors="replace")
    return Sass(frozenset(operations), frozenset(slots), parameters)


def _slot(offset: str, size: int = 8) -> int:
    """The slot, of so many bytes, of `c[0x4][0xc]`: 8; `RZ` is a zero, anything else is computed by the kernel:
    ANY_SLOT."""
    if offset == "RZ":
        return 0
    return int(offset, 16) & -size if re.fullmatch(r"0x[0-9a-f]+", offset) else ANY_SLOT
