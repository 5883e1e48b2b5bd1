"""The roofline of a device: peak arithmetic and memory bandwidth, by the data sheet or as measured.

Samuel Williams, Andrew Waterman, David Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009). Stated figures are those of the makers' data sheets for dense fp16 with fp32 sums,
which are those for bf16, too.
"""

from collections.abc import Iterable

import msgspec

from cudal2 import operators
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
"""(FLOP/s, bytes/s) by a part of the driver's name of the device."""


class Roof(msgspec.Struct, frozen=True):
    """Peak `flops` (FLOP/s) and `bandwidth` (bytes/s); `stated` where they are from the data sheet."""

    flops: float
    bandwidth: float
    stated: bool


def stated(device: str) -> Roof | None:
    """The data sheet's figures; None for a device not in STATED."""
    return next((Roof(*figures, True) for name, figures in STATED.items() if name in device), None)


def of(device: str, measured: Iterable[tuple[Problem, float]]) -> Roof:
    """The data sheet's figures; for a device not in STATED the highest rates among these measured problems, each with
    its microseconds per call."""
    if found := stated(device):
        return found
    rates = [(operators.flop(problem) / us * 1e6, operators.nbytes(problem) / us * 1e6) for problem, us in measured]
    return Roof(max(flops for flops, _ in rates), max(bandwidth for _, bandwidth in rates), False)
