"""What the instructions of a cubin are, as nvdisasm prints them."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker import disassembly
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.sandbox import jail

ANY_SLOT = -1
_INSTRUCTION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_CLOCK = re.compile(rb"\bSR_(?:CLOCK|GLOBALTIMER|GRIDID)\w*")
_ADDRESS = re.compile(rb"\bc\[0x4\]\[([^\]]*)\]")
_PARAMETER = re.compile(rb"\bc\[0x0\]\[([^\]]*)\]")
_CODE = re.compile(rb"^\.text\.(\S+):")
_LOADS = (b"LDC", b"ULDC", b"LDCU")
_WIDTHS = {b"U8": 1, b"S8": 1, b"U16": 2, b"S16": 2, b"64": 8, b"128": 16}
"""Bytes that a load of a constant reads, by its modifier; without one, and in other instructions, four."""


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
    with disassembly.listing([str(program), *options], cubin, kind, seconds) as lines:
        yield lines


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
