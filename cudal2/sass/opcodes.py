"""The kinds of operations, by opcode. Operations that are not named here are pinned: they never move.

Names are those of CUDA Binary Utilities, "Instruction Set Reference". Which operations have an unknown latency, whose
end only a barrier signals, is mined from the compiler's output for each architecture (data/sass/latencies.json).
"""

import re
from functools import cache

import msgspec

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
KEEPING = MATRIX | frozenset(
    "IABS IADD3 IMAD IMNMX ISETP LEA LOP3 MOV PRMT R2UR SEL SHF VIADD VIADDMNMX VIMNMX".split()
)
"""The operations that ptxas lets keep an operand for the next one (`reuse`)."""
KNOWN = ARITHMETIC | MATRIX | MEMORY
"""The operations that may move at all."""

TIMED = frozenset({"BAR", "MEMBAR", "MOVM"})
"""Operations to which the compiler sometimes gives a barrier, although it also relies on their latency."""

INSTANT = frozenset({"USETMAXREG"})
"""Operations whose barrier the next instruction may wait for after one cycle, as in ptxas's code."""

SYNCHRONIZING = frozenset("BAR DEPBAR ERRBAR MEMBAR UCGABAR_WAIT".split())
"""Operations after which memory shows the writes of other threads or of copies; not at once: see `held`."""
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
_PIPE = {operation: pipe for pipe, operations in _PIPES.items() for operation in operations.split()}

CLOCKS = ("SR_CLOCK", "SR_GLOBALTIMER", "SR_EVENT", "SR_PM")
"""Special registers whose value depends on when they are read."""

_TOLD = dict.fromkeys(("sm_8", "sm_90a"), "I2F:F2I,MUFU LDS:LDS LDSM:LDSM MUFU:F2I SHFL:SHFL")
_READ_TOLD = {
    "sm_8": "I2F:F2I,MUFU LDG:LDG LDGSTS:LDGSTS LDS:LDS LDSM:LDSM MUFU:F2I SHFL:SHFL,STG STG:LDL,LDS,SHFL,STG,STS "
    "STL:LDSM,STL STS:LDS,STS",
    "sm_90a": "I2F:F2I,MUFU LDG:LDG LDGSTS:LDGSTS LDS:LDS LDSM:LDSM MUFU:F2I SHFL:SHFL,STG STG:LDS,SHFL,STG "
    "STS:LDS,STS STSM:LDS,STSM",
}
_READ_BEFORE = {
    "sm_8": "LDSM:LDSM MUFU:I2F SHFL:SHFL STG:LDS,MOVM,SHFL STL:LDSM STS:MOVM",
    "sm_90a": "LDG:LDG LDGSTS:LDL LDSM:LDSM MUFU:I2F SHFL:SHFL STG:LDS,SHFL STSM:LDS",
}
_AT_ONCE = {
    "sm_8": "P:LDG,LDGSTS,STG,STS UR:LDG,STG",
    "sm_90a": "P:LDG,LDGSTS,STG,STS,SYNCS UR:LDGSTS,LDSM,STS,SYNCS",
}
"""By architecture (the beginning of its name), the assumptions of ptxas's schedules (see `Order`)."""

_Pairs = dict[str, frozenset[str]]


class Order(msgspec.Struct, frozen=True):
    """What ptxas assumes to have ended, or to be read, although nothing waited for it, on one architecture.

    Each entry is needed by at least one compiled kernel (experiments/sass/permitted.py shows by how many). Entries are
    for two operations, not for their pipes, and for Ampere and Ada separately from Hopper. An assumption that no kernel
    needs is not permitted, even if it looks true: four times a GPU showed that such a one was wrong.
    """

    told: _Pairs
    """By operation: earlier ones whose results its own barrier also signals."""
    read_told: _Pairs
    """By operation: earlier ones whose sources are read when its own barrier, of either kind, is at zero."""
    read_before: _Pairs
    """By operation: earlier ones whose sources it may overwrite at once. (An LDL reloads registers that an LDGSTS reads
    as an address.)"""
    at_once: _Pairs
    """By kind of register, `P` or `UR`: the operations that read such sources at issue."""

    def read_late(self, instruction: Instruction, register: str) -> bool:
        """Whether an instruction may read that register only some time after its issue."""
        kind = "P" if "P" in register else register.rstrip("0123456789")
        return instruction.operation not in self.at_once.get(kind, frozenset())


@cache
def order(architecture: str) -> Order:
    """The assumptions of ptxas on an architecture; none for one of which no kernels were examined."""
    tables = [_TOLD, _READ_TOLD, _READ_BEFORE, _AT_ONCE]
    told, read_told, read_before, at_once = (
        next((entries for name, entries in table.items() if architecture.startswith(name)), "") for table in tables
    )
    return Order(_by_later(told), _by_later(read_told), _by_later(read_before), _pairs(at_once))


def _pairs(entries: str) -> _Pairs:
    return {first: frozenset(others.split(",")) for first, _, others in (e.partition(":") for e in entries.split())}


def _by_later(entries: str) -> _Pairs:
    """The pairs by the later operation; `A:B` means that A comes before B."""
    pairs = [(first, later) for first, others in _pairs(entries).items() for later in others]
    return {later: frozenset(first for first, other in pairs if other == later) for _, later in pairs}


def pipe(instruction: Instruction) -> str:
    """The pipe of an operation, which decides its latency; the operation's own name if no other shares the pipe.

    Which operations share one is from cicuvc/nvidia-sass-document, and the mined distances confirm it.
    """
    return _PIPE.get(instruction.operation, instruction.operation)


def drained(instruction: Instruction) -> int:
    """The barriers that a DEPBAR waits for to be at zero, as a mask; 0 where it lets some operations stay pending."""
    if instruction.operation != "DEPBAR":
        return 0
    mask = 0
    if hit := re.fullmatch(r"SB(\d), 0x0(?:, \{([\d,]*)\})?", instruction.operands):
        mask |= 1 << int(hit.group(1))
    if hit := re.search(r"\{([\d,]+)\}", instruction.operands):
        mask |= sum(1 << int(number) for number in hit.group(1).split(","))
    return mask


def held(instruction: Instruction) -> bool:
    """Whether an instruction must not issue too early behind a synchronization.

    A BAR.SYNC does not hold back instructions that its own stall lets issue: found by fuzzing on an H200, where an LDSM
    five cycles behind one read old data; ptxas leaves six. Arithmetic may follow at once.
    """
    return instruction.operation in _HELD
