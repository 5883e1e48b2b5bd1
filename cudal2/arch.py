"""What each GPU architecture offers, and how fast a device can be: the only place where such facts are written.

To support another GPU, add its record to ARCHITECTURES. The compiler's flags, the kernel families that run on it and
the settings that their rules refuse, the prompt, the precision of the reference and the time that no kernel undercuts
all follow from the record, and `target=NAME` names it.

Where the facts are from, all of it public:

- CUDA C++ Programming Guide, "Compute Capabilities": shared memory a block, clusters, and the throughput of fp64.
- FLOP a cycle: the dense fp16 rates of NVIDIA's white papers over multiprocessors and boost clock, in TFLOP/s, GHz:
  A100 312 / (108 · 1.41); RTX A6000 154.8 / (84 · 1.8); RTX 4090 330.3 / (128 · 2.52); H100 SXM 989.4 / (132 · 1.83);
  B200 2250 / (148 · 1.85); RTX 5090 419 / (170 · 2.407). Where summing in f16 is faster than in f32, its rate.
- PTX ISA, "Target ISA Notes" of each instruction.
- STATED are the makers' data sheets for dense fp16 with fp32 sums, which are those for bf16, too. The roofline is that
  of Samuel Williams, Andrew Waterman, David Patterson: "Roofline: an insightful visual performance model for multicore
  architectures", CACM 52 (2009).
"""

import re
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from cudal2 import operators
from cudal2.problem import Problem

Instruction = Literal["mma", "cp.async", "clusters", "tma", "wgmma", "tcgen05"]
"""What kernels are built from and not every architecture has: mma.sync on fp16, copies to shared memory that a thread
need not wait for, clusters of blocks, copies of whole tiles (cp.async.bulk.tensor), matrix instructions of a warpgroup,
and those that sum in tensor memory."""


class Architecture(msgspec.Struct, frozen=True):
    """One kind of GPU. `name` is the compiler's (sm_90a).

    `shared_memory` is the most bytes that a block may ask for; `flop_per_cycle` the dense fp16 operations of one
    multiprocessor in one cycle, a multiply-add counted as two; `strong_fp64` whether fp64 runs at half the rate of
    fp32, instead of a small fraction. Raises ValueError for a record that cannot be true.
    """

    name: str
    shared_memory: int
    flop_per_cycle: int
    strong_fp64: bool
    instructions: frozenset[Instruction]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"sm_\d{2,}[af]?", self.name):
            raise ValueError(f"architecture {self.name!r}: the compiler's names are like sm_80 and sm_90a")
        if self.shared_memory <= 0 or self.flop_per_cycle <= 0:
            raise ValueError(f"{self.name}: shared_memory and flop_per_cycle are positive")
        if unknown := self.instructions.difference(get_args(Instruction)):
            raise ValueError(f"{self.name}: {', '.join(unknown)} is not among {', '.join(get_args(Instruction))}")

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: (9, 0) for sm_90a."""
        return divmod(int(re.sub(r"\D", "", self.name)), 10)


_AMPERE: frozenset[Instruction] = frozenset({"mma", "cp.async"})
_KIB = 1 << 10

ARCHITECTURES = {
    one.name: one
    for one in (
        Architecture("sm_80", 163 * _KIB, 2048, True, _AMPERE),
        Architecture("sm_86", 99 * _KIB, 1024, False, _AMPERE),
        Architecture("sm_89", 99 * _KIB, 1024, False, _AMPERE),
        Architecture("sm_90a", 227 * _KIB, 4096, True, _AMPERE | {"clusters", "tma", "wgmma"}),
        Architecture("sm_100a", 227 * _KIB, 8192, True, _AMPERE | {"clusters", "tma", "tcgen05"}),
        Architecture("sm_120a", 99 * _KIB, 1024, False, _AMPERE | {"clusters", "tma"}),
    )
}
"""Every GPU that kernels can be judged on, by name."""


def for_capability(major: int, minor: int) -> Architecture:
    """The record of that compute capability; ValueError with what to do where there is none.

    No other capability's record will do, though its kernels may run: how fast they can be is another matter.
    """
    for one in ARCHITECTURES.values():
        if one.capability == (major, minor):
            return one
    known = ", ".join("{}.{}".format(*one.capability) for one in ARCHITECTURES.values())
    raise ValueError(
        f"a GPU of compute capability {major}.{minor} has no record; those with {known} have one. "
        "Choose target=cpu, or add a record to ARCHITECTURES in cudal2/arch.py"
    )


MULTIPROCESSORS = {"sm_90a": 132}
"""Those of the GPU on which a target's settings were found, where it is one."""

STATED = {
    "H200": (989.4e12, 4.8e12),
    "H100 80GB HBM3": (989.4e12, 3.35e12),
    "H100 PCIe": (756e12, 2.0e12),
    "B200": (2250e12, 8.0e12),
    "A100-SXM4-80GB": (312e12, 2.039e12),
    "A100-SXM4-40GB": (312e12, 1.555e12),
    "RTX A6000": (154.8e12, 768e9),
    "RTX 4090": (165.2e12, 1008e9),
    "RTX 5090": (209.5e12, 1792e9),
}
"""(FLOP/s, bytes/s) by a part of the driver's name of the device."""


class Roof(msgspec.Struct, frozen=True):
    """Peak `flops` (FLOP/s) and `bandwidth` (bytes/s); `stated` where they are from the data sheet."""

    flops: float
    bandwidth: float
    stated: bool


def stated_roof(device: str) -> Roof | None:
    """The data sheet's figures; None for a device not in STATED."""
    return next((Roof(*figures, True) for name, figures in STATED.items() if name in device), None)


def roof(device: str, measured: Iterable[tuple[Problem, float]]) -> Roof:
    """The data sheet's figures; for a device not in STATED the highest rates among these measured problems, each with
    its microseconds per call."""
    if found := stated_roof(device):
        return found
    rates = [(operators.flop(problem) / us * 1e6, operators.nbytes(problem) / us * 1e6) for problem, us in measured]
    return Roof(max(flops for flops, _ in rates), max(bandwidth for _, bandwidth in rates), False)
