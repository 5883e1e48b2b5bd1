"""What kind of operation an opcode is. What is not named here is pinned: it is never moved, and never guessed at.

Names are those of CUDA Binary Utilities, "Instruction Set Reference". Which operations take a time that only a barrier
tells is read off the compiler's output (data/sass/latencies.json), an architecture at a time.
"""

import re

from cudal2.sass.listing import Instruction

SHARED_LOADS = frozenset({"LDS", "LDSM"})
SHARED_STORES = frozenset({"STS", "STSM"})
GLOBAL_LOADS = frozenset({"LDG", "LD"})
GLOBAL_STORES = frozenset({"STG", "ST"})
COPIES = frozenset({"LDGSTS"})
"""cp.async: reads global memory, writes shared memory, some time later."""
LOCAL_LOADS = frozenset({"LDL"})
LOCAL_STORES = frozenset({"STL"})
CONSTANT_LOADS = frozenset({"LDC", "ULDC"})
MEMORY = (
    SHARED_LOADS | SHARED_STORES | GLOBAL_LOADS | GLOBAL_STORES | COPIES | LOCAL_LOADS | LOCAL_STORES | CONSTANT_LOADS
)
MATRIX = frozenset({"HMMA"})
ARITHMETIC = frozenset(
    "BMSK CS2R F2FP FADD FCHK FFMA FLO FMNMX FMUL FSEL FSET FSETP HADD2 HFMA2 HMNMX2 HMUL2 HSET2 HSETP2 IABS IADD3 "
    "IMAD IMNMX ISETP LEA LOP3 MOV P2R PLOP3 POPC PRMT R2P SEL SGXT SHF VABSDIFF VIADD VIADDMNMX VIMNMX "
    "F2I I2F F2F FRND I2FP MUFU S2R S2UR R2UR SHFL "
    "UBMSK UFLO UIADD3 UIMAD UISETP ULEA ULOP3 UMOV UPLOP3 UPOPC UPRMT USEL USGXT USHF".split()
)
KNOWN = ARITHMETIC | MATRIX | MEMORY
"""The operations that may move at all."""

TIMED = frozenset({"BAR", "MEMBAR", "MOVM"})
"""Operations that the compiler gives a barrier at times, but relies on a time for as well."""

INSTANT = frozenset({"USETMAXREG"})
"""Operations whose barrier ptxas lets the very next instruction wait for, one cycle later."""

SYNCHRONIZING = frozenset("BAR DEPBAR ERRBAR MEMBAR UCGABAR_WAIT".split())
"""Operations behind which memory is as other threads, or copies, have left it; not at once: see `held`."""
_HELD = (MEMORY - CONSTANT_LOADS) | SYNCHRONIZING | frozenset("ATOMG HGMMA REDG STAS SYNCS UTMALDG UTMASTG".split())

_PIPES = {
    "int": "BMSK F2FP FMNMX FSEL FSET FSETP IABS IADD3 IMNMX ISETP LEA LOP3 MOV P2R PLOP3 PRMT R2P SEL SGXT SHF "
    "VABSDIFF VIADDMNMX VIMNMX",
    "imad": "IMAD VIADD",
    "float": "FADD FFMA FMUL",
    "half": "HADD2 HFMA2 HMNMX2 HMUL2 HSET2 HSETP2",
    "uniform": "UBMSK UFLO UIADD3 UIMAD UISETP ULEA ULOP3 UPLOP3 UPOPC UPRMT USEL USGXT USHF",
    "convert": "F2F F2I FCHK FLO FRND I2F MUFU POPC",
    "memory": "ATOMG LDG LDGSTS LDL LDS LDSM REDG SHFL STAS STG STL STS STSM",
}
_PIPE = {operation: pipe for pipe, those in _PIPES.items() for operation in those.split()}

CLOCKS = ("SR_CLOCK", "SR_GLOBALTIMER", "SR_EVENT", "SR_PM")
"""Special registers whose value depends on when they are read."""

_CONVERSIONS = frozenset({"F2F", "F2I", "FLO", "FRND", "I2F", "MUFU", "POPC"})


_IN_ORDER = frozenset({"LDC", "LDS", "LDSM", "SHFL"})
_MEMORY_PIPE = frozenset({"LDL", "LDS", "LDSM", "MOVM", "SHFL", "STG", "STL", "STS", "STSM"})


def source_queue(one: Instruction) -> str:
    """The pipe that reads the sources of such an operation, in the order of issue, and no later than its results.

    ptxas overwrites the data of a store by an LDS, or once a later LDS has been waited for, without a read barrier.
    """
    if one.operation in _MEMORY_PIPE:
        return "memory"
    return "conversions" if one.operation in _CONVERSIONS else one.operation


def read_before(sources: str, one: Instruction) -> bool:
    """Whether the queue `sources` has read what waits there before such an operation can overwrite it.

    ptxas lets an LDL reload the registers of an LDGSTS that no barrier tells of: both go through one unit in order.
    """
    return sources == source_queue(one) or (sources in COPIES and one.operation in LOCAL_LOADS)


def queue(one: Instruction) -> str:
    """The pipe whose results come in the order of issue: ptxas gives a barrier to the last of several alone.

    Of other operations each one that is ever waited for has a barrier of its own: nothing is concluded from another's.
    """
    if one.operation in _CONVERSIONS:
        return "conversions"
    return one.operation if one.operation in _IN_ORDER else f"{one.operation} {one.origin}"


def pipe(one: Instruction) -> str:
    """The pipe of an operation, which decides its latency; its own name where it shares it with no other.

    Which operations share one: cicuvc/nvidia-sass-document, confirmed by the distances seen.
    """
    return _PIPE.get(one.operation, one.operation)


def read_late(one: Instruction, register: str) -> bool:
    """Whether what waits in a pipe reads such a register there.

    Predicates are read at issue, and uniform registers too but by TMA: ptxas overwrites them right behind.
    """
    return register[0] == "R" or (register[:2] == "UR" and one.operation.startswith(("UTMA", "UBLK")))


def drained(one: Instruction) -> int:
    """The barriers that a DEPBAR waits to be at zero, as a mask; one that leaves some under way tells nothing."""
    if one.operation != "DEPBAR":
        return 0
    mask = 0
    if hit := re.fullmatch(r"SB(\d), 0x0(?:, \{([\d,]*)\})?", one.operands):
        mask |= 1 << int(hit.group(1))
    if hit := re.search(r"\{([\d,]+)\}", one.operands):
        mask |= sum(1 << int(number) for number in hit.group(1).split(","))
    return mask


def held(one: Instruction) -> bool:
    """Whether it must not issue too early behind a synchronization.

    A BAR.SYNC does not hold back what its own stall lets issue: found by fuzzing on an H200, where an LDSM five cycles
    behind one read what was there before; ptxas leaves six. What computes may follow at once.
    """
    return one.operation in _HELD
