"""The ceilings over a device's kernels: arithmetic and memory, as the maker states them or as measured.

Samuel Williams, Andrew Waterman, David Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009). Stated figures are those of the makers' data sheets for dense fp16 with fp32 sums.
"""

from collections.abc import Iterable

import msgspec

from cudal2.problem import Problem

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
"""FLOP/s and bytes/s by what the driver's name of a device contains."""


class Roof(msgspec.Struct, frozen=True):
    """`flops` and `bandwidth` (bytes/s), and which of the two ways they are known by."""

    flops: float
    bandwidth: float
    stated: bool


def stated(device: str) -> Roof | None:
    """The data sheet's ceilings; None for a device not in STATED."""
    return next((Roof(*figures, True) for name, figures in STATED.items() if name in device), None)


def of(device: str, measured: Iterable[tuple[Problem, float]]) -> Roof:
    """The data sheet's ceilings; for a device not in STATED the most that any of these problems reached in its
    microseconds, which then touches its roof."""
    if found := stated(device):
        return found
    rates = [(problem.flop / us * 1e6, problem.bytes / us * 1e6) for problem, us in measured]
    return Roof(max(flops for flops, _ in rates), max(bandwidth for _, bandwidth in rates), False)
