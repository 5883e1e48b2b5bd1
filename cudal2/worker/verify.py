"""Is a result right? Pure functions over arrays, after the statistic ρ of design and its bounds.

ρ = RMS(Ĉ − C) / RMS(fp16(C) − C), with C from a more precise reference: the error in units of what rounding the
perfect answer to fp16 costs. On zero-mean inputs fp32 accumulation gives 1.00–1.01 at any K. Rounding the running sum
to fp16 after every c products gives √(K/(2c) + ½), because the errors add up like a random walk: c is 16 inside a
tensor core's fp16 accumulator and 1 on a processor (measured: 9.1 at K = 160, c = 1).
"""

import math

import numpy as np
import torch

from cudal2.problem import Problem
from cudal2.records import Status

REFERENCE_FLOP = 2e10
"""Up to this much work the reference is accumulated in fp64; beyond it in fp32, which costs ρ nothing visible."""
TIMED_LIMIT = 0.8
"""Two fp32-accumulated results, each rounded to fp16, differ by less than this in units of ρ."""

Finding = tuple[Status, str]


def reference(a: np.ndarray, b: np.ndarray, problem: Problem) -> np.ndarray:
    """C [M,N] before rounding, float64 or (above REFERENCE_FLOP) float32, from stored A and B."""
    kind = torch.float64 if problem.flop <= REFERENCE_FLOP else torch.float32
    right = torch.from_numpy(b).to(kind)
    return (torch.from_numpy(a).to(kind) @ (right.T if problem.layout == "tn" else right)).numpy()


def rho(result: np.ndarray, exact: np.ndarray) -> float:
    """The error of `result` (fp16) in units of the rounding error of the perfect fp16 answer."""
    error = result.astype(np.float64) - exact
    rounding = exact.astype(np.float16).astype(np.float64) - exact
    return float(np.sqrt(np.square(error).mean() / max(np.square(rounding).mean(), 1e-30)))


def rho_limit(accumulate: str, k: int) -> float:
    """Largest ρ that passes: 1.05 for an fp32 accumulator, 1.15 √(K/2 + ½) for an fp16 one (c = 1)."""
    return 1.05 if accumulate == "f32" else 1.15 * math.sqrt(k / 2 + 0.5)


def element_bound(exact: np.ndarray, problem: Problem) -> np.ndarray:
    """Largest |ĉ − c| an honest kernel shows on N(0,1) inputs: one fp16 step and what summing K products loses.

    ulp₁₆(c) + K · ε · 4√K / 2, with ε = 2⁻²⁴ or, for an fp16 accumulator, 2⁻¹¹.
    """
    epsilon = 2.0**-24 if problem.accumulate == "f32" else 2.0**-11
    step = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    return step + problem.k * epsilon * 4 * math.sqrt(problem.k) / 2


def check_values(result: np.ndarray) -> Finding | None:
    """NaN stands for "not written" too: the parent fills C with it beforehand."""
    bad = (result.view(np.uint16) & 0x7C00) == 0x7C00  # NumPy's isfinite is slow on float16
    if not bad.any():
        return None
    where = tuple(int(index) for index in np.argwhere(bad)[0])
    return Status.WRONG, f"{int(bad.sum())} of {result.size} elements unwritten, NaN or Inf, first at {where}"


def check_normal(result: np.ndarray, exact: np.ndarray, problem: Problem) -> tuple[Finding | None, float, float]:
    """ρ and the element bound; returns what is wrong (or None), ρ, and the largest absolute error."""
    found = check_values(result)
    if found:
        return found, math.inf, math.inf
    value, error = rho(result, exact), np.abs(result.astype(np.float64) - exact)
    largest = float(error.max())
    outside = int((error > element_bound(exact, problem)).sum())
    limit = rho_limit(problem.accumulate, problem.k)
    if value > 2 * rho_limit("f16", problem.k):  # more than any honest precision explains
        found = Status.WRONG, f"{outside} of {result.size} elements are wrong (ρ = {value:.3g})"
    elif value > limit:
        found = Status.IMPRECISE, f"ρ = {value:.3g}, at most {limit:.3g} for {problem.accumulate}"
    elif outside:
        found = Status.WRONG, f"{outside} of {result.size} elements are out of bound"
    return found, value, largest


def check_exact(result: np.ndarray, exact: np.ndarray, what: str) -> Finding | None:
    """Integer inputs: the result must be the correctly rounded integer, bit for bit (±0 are one)."""
    found = check_values(result)
    if found:
        return found
    wrong = int((result != exact.astype(np.float16)).sum())
    return (Status.WRONG, f"{wrong} of {result.size} elements differ on {what}") if wrong else None


def check_timed(result: np.ndarray, baseline: np.ndarray, problem: Problem) -> Finding | None:
    """The outputs of timed calls against a trusted fp16 result of the same inputs; arrays [calls, M, N]."""
    differs = result.view(np.uint16) != baseline.view(np.uint16)
    if not differs.any():
        return None
    found = check_values(result)
    if found:
        return found[0], f"in timed calls {found[1]}"
    theirs, ours = result[differs], baseline[differs]
    error = np.abs(theirs.astype(np.float32) - ours.astype(np.float32))
    outside = int((error > element_bound(ours, problem) + np.spacing(np.abs(ours))).sum())
    if outside:
        return Status.WRONG, f"in timed calls {outside} of {result.size} elements are wrong"
    if problem.accumulate == "f32":
        # The rounding error of a value is uniform within its fp16 step: step / √12 in RMS. A sample will do.
        step = np.spacing(np.abs(baseline.reshape(-1)[:: max(1, baseline.size >> 16)])).astype(np.float64)
        value = math.sqrt(float(np.square(error, dtype=np.float64).sum()) / result.size / (np.square(step).mean() / 12))
        if value > TIMED_LIMIT:
            return Status.IMPRECISE, f"in timed calls the error is {value:.3g}, at most {TIMED_LIMIT} for f32"
    return None
