"""Is a result right? Pure functions over tensors of any device, after the statistic ρ of design and its bounds.

ρ = RMS(Ĉ − C) / RMS(fp16(C) − C), with C from a more precise reference: the error in units of what rounding the
perfect answer to fp16 costs. On zero-mean inputs fp32 accumulation gives 1.00–1.01 at any K. Where the running sum is
rounded to fp16 after every `chunk` products the errors add up like a random walk, the one after j products being √(j/K)
of the last: √(K/(2·chunk) + ½) together if `chunk` divides K. It is 16 inside a tensor core's fp16 accumulator and 1 on
a processor (measured: 9.1 at K = 160, chunk 1).

Every check makes one pass over its matrices in blocks and waits for the device once or twice; a failure costs more.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor

from cudal2 import arch
from cudal2.problem import Problem
from cudal2.records import Status

FP64_FLOP, FP64_FLOP_STRONG = 2e10, 1e13
"""Up to this much work the reference is accumulated in fp64, the latter on a GPU that is strong in it; beyond it in
fp32, which costs ρ nothing visible."""
TIMED_LIMIT = 0.8
"""Two fp32-accumulated results, each rounded to fp16, differ by less than this in units of ρ."""
SELDOM = 12 * math.log(10)
"""−ln of the probability with which an honest call is taken for a coarse one."""
BLOCK = 1 << 22
"""Elements looked at together, which bounds the temporaries."""

Finding = tuple[Status, str]


def reference(a: Tensor, b: Tensor, problem: Problem) -> Tensor:
    """C [M,N] before rounding, float64 or (above FP64_FLOP) float32, from stored A and B."""
    strong = a.is_cuda and arch.for_capability(*torch.cuda.get_device_capability(a.device)).strong_fp64
    kind = torch.float64 if problem.flop <= (FP64_FLOP_STRONG if strong else FP64_FLOP) else torch.float32
    right = b.to(kind)
    with _full_fp32():
        return a.to(kind) @ (right.T if problem.layout == "tn" else right)


@contextmanager
def _full_fp32() -> Iterator[None]:
    """No TF32 and no bf16 inside an fp32 product, whatever the process chose for itself."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before):
            backend.fp32_precision = precision


def rho(result: Tensor, exact: Tensor) -> float:
    """The error of `result` (fp16) in units of the rounding error of the perfect fp16 answer; NaN if that is."""
    squares, rounding, _, _ = _errors(result, exact, math.inf)
    return math.sqrt(squares / max(rounding, 1e-30))


def rho_limit(accumulate: str, k: int, chunk: int) -> float:
    """Largest ρ that passes: 1.05 for an fp32 accumulator, 1.15 times what rounding every chunk gives for an fp16 one.

    The last chunk may be shorter. A sum no longer than a chunk is rounded once, as an fp32 one is.
    """
    before = -(-k // chunk) - 1  # roundings before the last
    return 1.05 if accumulate == "f32" else 1.15 * math.sqrt(1 + chunk * before * (before + 1) / (2 * k))


def ulp16(values: Tensor) -> Tensor:
    """Distance from each |value| (float16) to the next larger float16, as float32."""
    power = (values.float().view(torch.int32) & 0x7F800000).view(torch.float32)  # the exponent alone: 2^⌊log₂|v|⌋
    return power.mul_(2.0**-10).clamp_min_(2.0**-24)


def loss_bound(problem: Problem, chunk: int) -> float:
    """How much summing K products of N(0,1) loses at most, final rounding apart: roundings · ε · 4√K / 2.

    ε is 2⁻²⁴ for each of the K roundings, or for an fp16 accumulator 2⁻¹¹ for each chunk.
    """
    roundings, epsilon = (problem.k, 2.0**-24) if problem.accumulate == "f32" else (-(-problem.k // chunk), 2.0**-11)
    return roundings * epsilon * 4 * math.sqrt(problem.k) / 2


def check_values(result: Tensor) -> Finding | None:
    """NaN stands for "not written" too: outputs are poisoned with it beforehand."""
    bad = (result.view(torch.int16) & 0x7C00) == 0x7C00
    count = int(bad.sum())
    if not count:
        return None
    first = bad.flatten().view(torch.uint8).argmax()
    where = tuple(int(index) for index in np.unravel_index(int(first), result.shape))  # torch's imports for seconds
    return Status.WRONG, f"{count} of {result.numel()} elements unwritten, NaN or Inf, first at {where}"


def check_normal(result: Tensor, exact: Tensor, problem: Problem, chunk: int) -> tuple[Finding | None, float, float]:
    """ρ, and |ĉ − c| ≤ ulp₁₆(c) + loss_bound for each element of a product of N(0,1) inputs.

    Returns what is wrong (or None), ρ, and the largest absolute error.
    """
    squares, rounding, largest, outside = _errors(result, exact, loss_bound(problem, chunk))
    if not math.isfinite(squares):
        return check_values(result) or (Status.WRONG, "the error is not finite"), math.inf, math.inf
    value, limit = math.sqrt(squares / max(rounding, 1e-30)), rho_limit(problem.accumulate, problem.k, chunk)
    found: Finding | None = None
    if value > 2 * rho_limit("f16", problem.k, 1):  # more than any honest precision explains
        found = Status.WRONG, f"{outside:.0f} of {result.numel()} elements are wrong (ρ = {value:.3g})"
    elif value > limit:
        found = Status.IMPRECISE, f"ρ = {value:.3g}, at most {limit:.3g} for {problem.accumulate}"
    elif outside:
        found = Status.WRONG, f"{outside:.0f} of {result.numel()} elements are out of bound"
    return found, value, largest


def check_exact(result: Tensor, exact: Tensor, what: str) -> Finding | None:
    """Integer inputs: the result must be the correctly rounded integer, bit for bit (±0 are one)."""
    counts = [(r.float() != e.half().float()).sum() for r, e in _blocks(result, exact)]
    wrong = int(torch.stack(counts).sum())
    if not wrong:
        return None
    return check_values(result) or (Status.WRONG, f"{wrong} of {result.numel()} elements differ on {what}")


def check_timed(result: Tensor, baseline: Tensor, problem: Problem, chunk: int) -> Finding | None:
    """The outputs of timed calls against a trusted fp16 result of the same N(0,1) inputs; tensors [calls, M, N].

    Both may be off by what one honest result may be: twice the element bound, and in RMS √2 times as much. That holds
    for all of them together, and with `disagreements` for each call by itself, lest some calls be coarse. Strides are
    multiples of four elements.
    """
    quads = [tensor.view(torch.int64).flatten(1) for tensor in (result, baseline)]  # four elements at once
    differs = (quads[0] != quads[1]).flatten().nonzero().squeeze(1)
    if not len(differs):
        return None
    # The rounding error of a value is uniform within its fp16 step: step / √12 in RMS. A sample will do.
    stride = max(1, math.isqrt(baseline.numel() >> 16))
    step = ulp16(baseline[:, ::stride, ::stride]).square_().mean()
    sums = torch.zeros(2, len(result), dtype=torch.float64, device=result.device)
    outside = torch.zeros((), dtype=torch.int64, device=result.device)
    bound = loss_bound(problem, chunk)
    for part in differs.split(BLOCK // 4):
        calls, places = part // quads[0].shape[1], part % quads[0].shape[1]
        found, expected = (quad[calls, places].view(torch.float16) for quad in quads)
        error, ulp = found.float().sub_(expected.float()).abs_(), ulp16(expected)
        outside += (error > (ulp + bound).mul_(2)).sum()
        counted = (error / torch.maximum(ulp, step.sqrt())).square_()
        squares = torch.stack([error.square_(), counted]).view(2, -1, 4)
        sums.index_add_(1, calls, squares.sum(2, dtype=torch.float64))
    total, worst, unit, wrong = torch.stack([sums[0].sum(), sums[1].max(), step.double(), outside.double()]).tolist()
    if not math.isfinite(total):
        return Status.WRONG, f"in timed calls {(check_values(result) or ('', 'the baseline is not finite'))[1]}"
    if wrong:
        return Status.WRONG, f"in timed calls {wrong:.0f} of {result.numel()} elements are wrong"
    count = result[0].numel()
    limit = TIMED_LIMIT if problem.accumulate == "f32" else math.sqrt(2) * rho_limit("f16", problem.k, chunk)
    alone = math.sqrt(12 * disagreements(count, limit, problem.accumulate == "f32") / count)
    for what, value, most in (
        ("ρ", math.sqrt(12 * total / (result.numel() * unit)), limit),
        ("ρ of one alone", math.sqrt(12 * worst / count), alone),
    ):
        if value > most:
            return (
                Status.IMPRECISE,
                f"in timed calls {what} is {value:.3g}, at most {most:.3g} for {problem.accumulate}",
            )
    return None


@cache
def disagreements(count: int, limit: float, rare: bool) -> float:
    """Two honest results of `count` elements, whose ρ is at most `limit` in the mean, disagree by less: the sum D of
    squared differences d, each in units of the element's ulp or, where that is smaller, of the RMS of all ulps.

    In the mean D is no more than μ = count · limit² / 12, as ρ² is 12 Σd² / Σulp². Around that it scatters:

    - Two sums in fp32 round to the same fp16 number, unless a boundary lies between them, which has a small probability
      for each element, whatever the others do. They are neighbours then, and d ≤ 1 in these units. A sum of independent
      terms, each between 0 and 1, of mean μ together has no wider tail than a Poisson count of mean μ (its exponential
      moments are no larger: Hoeffding, JASA 58(301), 1963): P(D ≥ x) ≤ exp(−(x ln(x/μ) − x + μ)).
    - Two sums in fp16 (not `rare`) differ everywhere, by numbers that look normal, some elements' more widely: their
      variances are taken to be up to four times the mean. A sum of squares of normals has
      P(D ≥ μ + 4√(μ²t/count) + 8μt/count) ≤ exp(−t) then (Laurent and Massart, Annals of Statistics 28(5), 2000).

    The probability is 10⁻¹² for each call: a campaign of a million verdicts has 10¹¹ of them.
    """
    mean = count * limit**2 / 12
    if not rare:
        return mean * (1 + 4 * math.sqrt(SELDOM / count) + 8 * SELDOM / count)
    low, high = mean, mean + 2 * SELDOM + 2 * math.sqrt(SELDOM * mean)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.log(middle / mean) - middle + mean < SELDOM else (low, middle)
    return high


def _errors(result: Tensor, exact: Tensor, loss: float) -> list[float]:
    """Σ(r − e)², Σ(fp16(e) − e)², max |r − e|, and the number of |r − e| > ulp₁₆(e) + loss.

    Reads the device once. Non-finite values make the first NaN or infinite.
    """
    rows = []
    for r, e in _blocks(result, exact):
        rounded = e.half()
        rounding = rounded.to(e.dtype).sub_(e)
        error = r.to(e.dtype).sub_(e).abs_()
        outside = error > ulp16(rounded).add_(loss)
        squares = [torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in (error, rounding)]
        rows.append(torch.stack([*squares, error.max().double(), outside.sum().double()]))
    columns = list(zip(*torch.stack(rows).tolist()))
    return [sum(columns[0]), sum(columns[1]), max(columns[2]), sum(columns[3])]


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matching views of equally shaped tensors, of at most BLOCK elements each."""
    like = tensors[0]
    if like.numel() <= BLOCK:
        yield tensors
        return
    step = BLOCK // like[0].numel()
    for parts in zip(*(tensor.split(max(1, step)) for tensor in tensors)):
        yield from _blocks(*(part[0] for part in parts)) if not step else (parts,)
