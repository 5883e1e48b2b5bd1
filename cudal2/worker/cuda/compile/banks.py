"""What the instructions of honest kernels read besides registers and memory: special registers, words of the driver.

Constant bank 0 holds a launch's parameters, and before them what the driver tells of it; which words of these the
compiler reads of its own accord was found by compiling kernels that read each special register, and a wide set of
honest ones (CUTLASS, cooperative groups, CUB, Triton, this project's families) for each generation. Whatever is not
named here is refused: the launch's number, for one, is a word of bank 0, and the places of the banks among all memory.
Bank 2 holds numbers that the compiler put there, bank 3 the source's __constant__ tables, bank 4 addresses of globals.
"""

from typing import Literal, NamedTuple

import msgspec

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
        if read.computed and not known.by_cluster.issuperset(_read(read)):
            return "computed"
        if read.computed or known.fixed.issuperset(_read(read)):
            return None
        if read.offset < known.parameters:
            return "driver"
        far = read.offset + read.size
        return "beyond" if far > sizes.get(f".nv.constant0.{read.code}", far) else None
    names = {2: f".nv.constant2.{read.code}", 3: ".nv.constant3", 4: ".nv.constant4"}
    if read.bank not in names or (size := sizes.get(names[read.bank], 0)) == 0:
        return "bank"
    return None if read.computed or read.offset + read.size <= size else "bank"


def _read(read: Read) -> range:
    return range(read.offset, read.offset + read.size)
