"""What the instructions of a cubin are, as nvdisasm prints them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker import disassembly
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.cuda.compile.banks import Read
from cudal2.worker.sandbox import jail

_INSTRUCTION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_SPECIAL = re.compile(rb"\bSR\w+(?:\.\w+)?")
_READS_SPECIAL = (b"S2R", b"S2UR", b"CS2R", b"CS2UR")
_CONSTANT = re.compile(rb"\b(cx?)\[([^\]]*)\]\[([^\]]*)\]")
_PLACE = re.compile(r"(?:(?P<register>U?R\d+)|U?RZ)?\+?(?P<offset>0x[0-9a-f]+)?")
_CODE = re.compile(rb"^\.text\.(\S+):")
_TARGET = re.compile(rb"^\s*(?:\.target\s+sm_|\.headerflags\s.*?\bEF_CUDA_SM)(\d+)")  # newer and older cubins
_LOADS = (b"LDC", b"ULDC", b"LDCU")
_WIDTH = re.compile(rb"[US]?(8|16|32|64|128|256)")
"""Of a load of a constant, by its modifier; without one, and in other instructions, it is 32 bits."""
_OPERATION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]{0,15})\b")


class Sass(msgspec.Struct, frozen=True):
    """What a cubin's instructions are: each different operation with its modifiers, each special register that is read
    (the whole operand where it is no known form of one), and each read of a constant bank.

    `architecture` is the number of `sm_90a`, 0 where the listing does not say.
    """

    operations: frozenset[str]
    special: frozenset[str] = frozenset()
    reads: frozenset[Read] = frozenset()
    architecture: int = 0

    @property
    def slots(self) -> frozenset[int] | None:
        """The offsets in constant bank 4 that are read, where addresses of globals stand; None where one is computed:
        it may be any."""
        slots = [read for read in self.reads if read.bank == 4]
        return None if any(read.computed for read in slots) else frozenset(read.offset & ~7 for read in slots)


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
    special: set[str] = set()
    reads: set[Read] = set()
    code, architecture = "", 0
    for line in lines:
        if hit := _INSTRUCTION.match(line):
            name, operands = hit.groups()
            operations.add(name.decode())
            names = _SPECIAL.findall(operands)
            if not names and name.split(b".")[0] in _READS_SPECIAL:
                names = [operands.rpartition(b",")[2].strip()]
            special.update(one.decode(errors="replace") for one in names)
            if b"c" in operands:
                reads.update(_read(code, name, *one) for one in _CONSTANT.findall(operands))
        elif begins := _CODE.match(line):
            code = begins.group(1).decode(errors="replace")
        elif stated := _TARGET.match(line):
            architecture = int(stated.group(1))
    return Sass(frozenset(operations), frozenset(special), frozenset(reads), architecture)


def _read(code: str, name: bytes, kind: bytes, bank: bytes, place: bytes) -> Read:
    operation, *modifiers = name.split(b".")
    widths = [int(hit.group(1)) // 8 for one in modifiers if operation in _LOADS and (hit := _WIDTH.fullmatch(one))]
    number = int(bank, 16) if kind == b"c" and re.fullmatch(rb"0x[0-9a-f]+", bank) else -1
    at = _PLACE.fullmatch(place.decode(errors="replace"))
    size = (*widths, 4)[0]
    if not at:
        return Read(code, number, -1, size, computed=True)
    return Read(code, number, int(at["offset"] or "0", 16), size, computed=at["register"] is not None)


def operation_counts(cubin: bytes, kind: jail.Kind, seconds: float) -> dict[str, int]:
    """The number of instructions by operation, without modifiers, in all functions of a cubin: {"HMMA": 128, "LDSM":
    64, …}, the most frequent first.

    This is a static count, not one of executions; NOPs, which fill up the last line, are left out. Raises as
    `read` does.
    """
    with listing(cubin, kind, seconds) as lines:
        return count_operations(lines)


def count_operations(lines: Iterable[bytes]) -> dict[str, int]:
    """The counts in the lines of a disassembly."""
    counts = Counter(hit.group(1).decode() for line in lines if (hit := _OPERATION.match(line)))
    del counts["NOP"]
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
