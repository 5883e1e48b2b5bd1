"""What the instructions of a cubin are, as nvdisasm prints them, and what those of honest kernels read besides
registers and memory: special registers, words of the driver.

Constant bank 0 holds a launch's parameters, and before them what the driver tells of it; which words of these the
compiler reads of its own accord was found by compiling kernels that read each special register, and a wide set of
honest ones (CUTLASS, cooperative groups, CUB, Triton, this project's families) for each generation. Whatever is not
named here is refused: the launch's number, for one, is a word of bank 0, and the places of the banks among all memory.
Bank 2 holds numbers that the compiler put there, bank 3 the source's __constant__ tables, bank 4 addresses of globals.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal, NamedTuple

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker import build
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.sandbox import jail

SPECIAL = frozenset(
    {
        *("SR_TID", "SR_TID.X", "SR_TID.Y", "SR_TID.Z", "SR_CTAID.X", "SR_CTAID.Y", "SR_CTAID.Z", "SR_NTID"),
        *("SR_LANEID", "SR_EQMASK", "SR_LTMASK", "SR_LEMASK", "SR_GTMASK", "SR_GEMASK"),
        *("SR_CgaCtaId", "SR_CgaSize", "SR_SMEMSZ"),
        "SR_SWINHI",  # where shared memory lies among all addresses, which is the same in every launch
        "SRZ",  # zero
    }
)
"""Special registers that instructions may read; `registers` says why, for their names in PTX."""


class Read(msgspec.Struct, frozen=True):
    """A read of `size` bytes of a constant bank, `bank` -1 where it is none of a number, by a kernel or function.

    `offset` is in bytes; where `computed`, a register is added to it, and it is -1 where it is not plain.
    """

    code: str
    bank: int
    offset: int
    size: int
    computed: bool = False


class Words(NamedTuple):
    """What a generation keeps in bank 0: bytes that may be read, those to whose offset a multiple of the cluster's size
    is added, and where the parameters begin."""

    fixed: frozenset[int]
    by_cluster: frozenset[int]
    parameters: int


def _bytes(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(byte for first, end in ranges for byte in range(first, end))


_AMPERE = Words(
    _bytes(
        (0x00, 0x18),  # the sizes of block and grid
        (0x18, 0x28),  # where shared and local memory lie among all addresses
        (0x28, 0x30),  # the top of the stack, the size of dynamic shared memory
        (0x8C, 0x94),  # the grid's barrier (%envreg1, %envreg2; `registers` follows them)
        (0x114, 0x120),  # shared memory of the system's own; the descriptor of global memory
    ),
    frozenset(),
    0x160,
)
_HOPPER = Words(
    _bytes(
        (0x00, 0x18),  # the sizes of block and grid
        (0x20, 0x28),  # where local memory lies
        (0x28, 0x30),  # the top of the stack, the size of dynamic shared memory
        (0x44, 0x4C),  # the grid's barrier
        (0x114, 0x118),  # shared memory of the system's own
        (0x13C, 0x168),  # sizes and counts of clusters
        (0x188, 0x18C),  # blocks of a cluster
        (0x198, 0x1A0),  # where bank 0 itself lies, for tensor maps (`parameters` follows it)
        (0x208, 0x210),  # the descriptor of global memory
    ),
    frozenset(),
    0x210,
)
_BLACKWELL = Words(
    _bytes(
        (0x16C, 0x170),  # shared memory of the system's own
        (0x2F8, 0x300),  # where local memory lies
        (0x348, 0x350),  # where bank 0 itself lies, for tensor maps
        (0x358, 0x360),  # the descriptor of global memory
        (0x360, 0x380),  # the sizes of block and grid, whether there are clusters, the top of the stack
    ),
    # The grid's barrier; sizes and counts of clusters, and the size of dynamic shared memory.
    _bytes((0x254, 0x25C), (0x2A0, 0x2D0)),
    0x380,
)


def words(architecture: int) -> Words:
    """What bank 0 holds before the parameters, by the number of `sm_90a`. ValueError for a generation not looked at."""
    match architecture // 10:
        case 8:
            return _AMPERE
        case 9:
            return _HOPPER
        case 10 | 12:
            return _BLACKWELL
    raise ValueError(f"what the driver keeps on sm_{architecture} is not known")


Fault = Literal["beyond", "computed", "driver", "bank"]


def fault(read: Read, known: Words, sizes: dict[str, int]) -> Fault | None:
    """What is wrong with a read: it is of a parameter `beyond` the end or at a `computed` place, of a word of the
    `driver`, or of a `bank` that holds nothing of the kernel's there. `sizes` are those of the cubin's sections."""
    if read.bank == 0:
        if read.computed and not known.by_cluster.issuperset(_readable(read)):
            return "computed"
        if read.computed or known.fixed.issuperset(_readable(read)):
            return None
        if read.offset < known.parameters:
            return "driver"
        far = read.offset + read.size
        return "beyond" if far > sizes.get(f".nv.constant0.{read.code}", far) else None
    names = {2: f".nv.constant2.{read.code}", 3: ".nv.constant3", 4: ".nv.constant4"}
    if read.bank not in names or (size := sizes.get(names[read.bank], 0)) == 0:
        return "bank"
    return None if read.computed or read.offset + read.size <= size else "bank"


def _readable(read: Read) -> range:
    return range(read.offset, read.offset + read.size)


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


@contextmanager
def listing(
    cubin: bytes, kind: jail.Kind, seconds: float, options: tuple[str, ...] = ("-c", "-ndf")
) -> Iterator[BinaryIO]:
    """What nvdisasm with these options prints of a cubin within `seconds`, in a file.

    ValueError where nvdisasm cannot read it, the kind Unfinished where it was stopped; HarnessFault where there is no
    disassembler or no jail.
    """
    program = toolchain.nvdisasm()
    if program is None:
        raise HarnessFault("nvdisasm, the CUDA disassembler, is not installed", toolchain.REMEDY)
    with build.listing([str(program), *options], cubin, kind, seconds) as lines:
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
    `listing` does.
    """
    with listing(cubin, kind, seconds) as lines:
        return count_operations(lines)


def count_operations(lines: Iterable[bytes]) -> dict[str, int]:
    """The counts in the lines of a disassembly."""
    counts = Counter(hit.group(1).decode() for line in lines if (hit := _OPERATION.match(line)))
    del counts["NOP"]
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
