"""Is a result right? Pure functions over tensors of any device, after the statistic ρ of design and its bounds.

ρ = RMS(Ĉ − C) / RMS(round(C) − C), with C from a more precise reference, finished as the operator says: the error in
units of what rounding the perfect answer to the result's own type costs. On zero-mean inputs fp32 accumulation gives
1.00–1.01 at any K, in fp16 and in bf16, whose unit is eight times as large. Where the running sum is rounded to fp16
after every `chunk` products the errors add up like a random walk, the one after j products being √(j/K) of the last:
√(K/(2·chunk) + ½) together if `chunk` divides K. It is 16 inside a tensor core's fp16 accumulator and 1 on a processor
(measured: 9.1 at K = 160, chunk 1). Finishing rounds such a sum once more.

In a wide unit some faults are small. What rounds twice, by way of fp16 to bf16, has a ρ of 1.00; integers show it, bit
for bit. An activation that flattens hides nothing either: where it is flat there is no error and no rounding, and of
zero-mean sums half lie where it is steep.

Every check makes one pass over its matrices in blocks and waits for the device once or twice; a failure costs more.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from cudal2 import arch, operators
from cudal2.dtype import DTYPES, DType
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker.limits import disagreements, least_rounding, loss_bound, most_rho, rho_limit, timed_limit

FP64_FLOP, FP64_FLOP_STRONG = 2e10, 1e13
"""Up to this much work the reference is accumulated in fp64, the latter on a GPU that is strong in it; beyond it in
fp32, which costs ρ nothing visible."""
BLOCK = 1 << 22
"""Elements looked at together, which bounds the temporaries."""

Finding = tuple[Status, str]
_TYPES = {getattr(torch, dtype.torch): dtype for dtype in DTYPES.values()}


def _type(tensor: Tensor) -> DType:
    """The record of a tensor's number type."""
    return _TYPES[tensor.dtype]


def reference(given: Sequence[Tensor], problem: Problem) -> Tensor:
    """C [M,N] before rounding, float64 or (above FP64_FLOP) float32, from the input operands as they are stored."""
    gpu = given[0].device if given[0].is_cuda else None
    strong = gpu is not None and arch.for_capability(*torch.cuda.get_device_capability(gpu)).strong_fp64
    kind = torch.float64 if problem.flop <= (FP64_FLOP_STRONG if strong else FP64_FLOP) else torch.float32
    a, b, *more = (tensor.to(kind) for tensor in given)
    with _full_fp32():
        product = a @ (b.T if problem.layout == "tn" else b)
    return operators.find(problem.epilogue).finish(product, more)


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
    """The error of `result` in units of the rounding error of the perfect answer in its type; NaN if that is."""
    squares, rounding, _, _ = _errors(result, exact, math.inf)
    return math.sqrt(squares / max(rounding, 1e-30))


def ulp(values: Tensor) -> Tensor:
    """Distance from each |value| to the next larger one of the tensor's type, as float32."""
    dtype = _type(values)
    power = (values.float().view(torch.int32) & 0x7F800000).view(torch.float32)  # the exponent alone: 2^⌊log₂|v|⌋
    return power.mul_(2.0 ** (1 - dtype.digits)).clamp_min_(dtype.smallest_step)


def check_values(result: Tensor) -> Finding | None:
    """NaN stands for "not written" too: outputs are poisoned with it beforehand."""
    infinity = _type(result).infinity
    bad = (result.view(torch.int16) & infinity) == infinity
    count = int(bad.sum())
    if not count:
        return None
    first = bad.flatten().view(torch.uint8).argmax()
    where = tuple(int(index) for index in np.unravel_index(int(first), result.shape))  # torch's imports for seconds
    return Status.WRONG, f"{count} of {result.numel()} elements unwritten, NaN or Inf, first at {where}"


def check_normal(
    result: Tensor, exact: Tensor, problem: Problem, chunk: int, most: float | None = None
) -> tuple[Finding | None, float, float]:
    """ρ, and |ĉ − c| ≤ ulp(c) + loss_bound for each element of what comes of N(0,1) inputs.

    `most` is the greatest Σ(ĉ − c)² of an honest result where these inputs tell it (`scatter.most_squares`). Returns
    what is wrong (or None), ρ, and the largest absolute error.
    """
    squares, rounding, largest, outside = _errors(result, exact, loss_bound(problem, chunk))
    if not math.isfinite(squares):
        return check_values(result) or (Status.WRONG, "the error is not finite"), math.inf, math.inf
    least = result.numel() * least_rounding(problem, result.numel()) ** 2
    unit = max(rounding, least, 1e-30)
    value, limit = math.sqrt(squares / unit), most_rho(problem, chunk)
    if most is not None:
        limit = math.sqrt(most / unit)
    found: Finding | None = None
    if value > 2 * max(limit, rho_limit("f16", problem.k, 1)):  # more than any honest precision explains
        found = Status.WRONG, f"{outside:.0f} of {result.numel()} elements are wrong (ρ = {value:.3g})"
    elif value > limit:
        found = Status.IMPRECISE, f"ρ = {value:.3g}, at most {limit:.3g} for {problem.accumulate}"
    elif outside:
        found = Status.WRONG, f"{outside:.0f} of {result.numel()} elements are out of bound"
    return found, value, largest


def check_exact(result: Tensor, exact: Tensor, what: str, loss: float = 0.0) -> Finding | None:
    """Integer inputs: the result must be the correctly rounded integer, bit for bit (±0 are one).

    Where finishing may be off by `loss`, any number between those that its two ends round to will do: nearly everywhere
    that is one number, too, for what an activation makes of large sums is again large or nothing.
    """
    counts = []
    for r, e in blocks(result, exact):
        low, high = ((e + shift).to(r.dtype).float() for shift in (-loss, loss))
        counts.append((~((r.float() >= low) & (r.float() <= high))).sum())
    wrong = int(torch.stack(counts).sum())
    if not wrong:
        return None
    return check_values(result) or (Status.WRONG, f"{wrong} of {result.numel()} elements differ on {what}")


def check_timed(result: Tensor, baseline: Tensor, problem: Problem, chunk: int) -> Finding | None:
    """The outputs of timed calls against a trusted result of the same N(0,1) inputs; tensors [calls, M, N].

    Both may be off by what one honest result may be: twice the element bound, and in RMS `timed_limit`, with what few
    elements scatter by (`disagreements`). That holds for all of them together, and for each call by itself, lest some
    calls be coarse. Strides are multiples of four elements.

    The trusted result is rounded once, as the candidate's has to be. A library's way to an operator may round its
    product first, and again when it is finished; a limit that counted these roundings would let as much pass of every
    candidate. So such a baseline is timed, and what is compared is what a fused one makes of the same inputs.
    """
    quads = [tensor.view(torch.int64).flatten(1) for tensor in (result, baseline)]  # four elements at once
    differs = (quads[0] != quads[1]).flatten().nonzero().squeeze(1)
    if not len(differs):
        return None
    # The rounding error of a value is uniform within its fp16 step: step / √12 in RMS. A sample will do.
    stride = max(1, math.isqrt(baseline.numel() >> 16))
    step = ulp(baseline[:, ::stride, ::stride]).square_().mean()
    sums = torch.zeros(2, len(result), dtype=torch.float64, device=result.device)
    outside = torch.zeros((), dtype=torch.int64, device=result.device)
    bound = loss_bound(problem, chunk)
    for part in differs.split(BLOCK // 4):
        calls, places = part // quads[0].shape[1], part % quads[0].shape[1]
        found, expected = (quad[calls, places].view(result.dtype) for quad in quads)
        error, spacing = found.float().sub_(expected.float()).abs_(), ulp(expected)
        outside += (error > (spacing + bound).mul_(2)).sum()
        counted = (error / torch.maximum(spacing, step.sqrt())).square_()
        squares = torch.stack([error.square_(), counted]).view(2, -1, 4)
        sums.index_add_(1, calls, squares.sum(2, dtype=torch.float64))
    total, worst, unit, wrong = torch.stack([sums[0].sum(), sums[1].max(), step.double(), outside.double()]).tolist()
    if not math.isfinite(total):
        return Status.WRONG, f"in timed calls {(check_values(result) or ('', 'the baseline is not finite'))[1]}"
    if wrong:
        return Status.WRONG, f"in timed calls {wrong:.0f} of {result.numel()} elements are wrong"
    count = result[0].numel()
    unit = max(unit, 12 * least_rounding(problem, count) ** 2, 1e-30)
    # What finishing may lose moves results across so many more boundaries; in the mean it is a quarter of the most.
    more = 3 * operators.find(problem.epilogue).loss / math.sqrt(unit)
    limit, rare = math.sqrt(timed_limit(problem, chunk) ** 2 + more), problem.accumulate == "f32"
    for what, found_squares, number in (
        ("ρ", total / unit, result.numel()),
        ("ρ of one alone", worst, count),
    ):
        value, most = (
            math.sqrt(12 * squares / number) for squares in (found_squares, disagreements(number, limit, rare))
        )
        if value > most:
            return (
                Status.IMPRECISE,
                f"in timed calls {what} is {value:.3g}, at most {most:.3g} for {problem.accumulate}",
            )
    return None


def _errors(result: Tensor, exact: Tensor, loss: float) -> list[float]:
    """Σ(r − e)², Σ(round(e) − e)², max |r − e|, and the number of |r − e| > ulp(e) + loss.

    Reads the device once. Non-finite values make the first NaN or infinite.
    """
    rows = []
    for r, e in blocks(result, exact):
        rounded = e.to(r.dtype)
        rounding = rounded.to(e.dtype).sub_(e)
        error = r.to(e.dtype).sub_(e).abs_()
        outside = error > ulp(rounded).add_(loss)
        squares = [torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in (error, rounding)]
        rows.append(torch.stack([*squares, error.max().double(), outside.sum().double()]))
    columns = list(zip(*torch.stack(rows).tolist()))
    return [sum(columns[0]), sum(columns[1]), max(columns[2]), sum(columns[3])]


def blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Matching views of equally shaped tensors, of at most BLOCK elements each."""
    like = tensors[0]
    if like.numel() <= BLOCK:
        yield tensors
        return
    step = BLOCK // like[0].numel()
    for parts in zip(*(tensor.split(max(1, step)) for tensor in tensors)):
        yield from blocks(*(part[0] for part in parts)) if not step else (parts,)
