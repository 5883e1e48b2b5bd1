"""Tries a kernel once, before its first call on a device: one product of random matrices, compared with torch's.

A judge may be deceived, and a machine differ from the one that was judged on. What is wrong on any inputs shows here; a
kernel that is right at first and wrong later does not. A kernel for several numbers of rows is tried with the fewest,
the most, and one between. The bounds are those of the judge's timed calls: of two honest results, each rounded, both
may be off.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .held import Held, Kernel
from .op import Place, Trial

CPU = 0
"""As torch numbers kinds of devices."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Types of matrices by the names that problems have for them."""
_STEP = 1 << 22
"""Elements of a result that are compared together, which bounds what memory that takes."""


def of(held: Held, place: Place, accumulate: str) -> Trial:
    """What the table of `place`, which is open, asks before one of this folder's kernels serves. A warning names a
    kernel that is wrong."""
    ops, on_gpu = torch.ops.cudal2, place.device_type != CPU
    # How many products are summed before a narrow accumulator rounds; an fp32 one needs no bound for that.
    chunk = (16 if held.on_gpu else 1) if accumulate == "f16" else 0

    def multiply(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor | None:
        if bias is None:
            return ops.attempt_matmul.default(a, b, place.id)
        return ops.attempt_biased.default(a, b.t(), bias, place.id)

    def tried(kernel: Kernel, rows: Sequence[int], index: int) -> int:
        how = kernel.n, kernel.k, kernel.layout == "tn", torch.device("cuda", index) if on_gpu else torch.device("cpu")
        of = DTYPES[kernel.dtype], kernel.epilogue == "bias"
        try:
            picked = sorted({rows[0], rows[len(rows) // 2], rows[-1]})
            right = all(is_right(m, *how, chunk, multiply, *of) for m in picked)
        except (RuntimeError, MemoryError):  # no memory, most likely; torch says so if it has none for the call either
            return -1
        if not right:
            what = f"the kernel for {kernel.name} in {held.folder} does not give torch's product"
            text = f"cudal2: {what}; torch serves its calls"
            try:
                warnings.warn(text, stacklevel=2)
            except Warning:  # where warnings are errors, there is no caller here to raise it in
                print(text)
        return int(right)

    return tried


def is_right(
    m: int,
    n: int,
    k: int,
    transposed: bool,
    device: torch.device,
    chunk: int,
    multiply: Callable[[Tensor, Tensor, Tensor | None], Tensor | None],
    dtype: torch.dtype = torch.float16,
    biased: bool = False,
) -> bool:
    """Whether `multiply(a, b, bias)` of N(0,1) matrices is torch's result within the bounds; also where it gives none,
    for then it says itself why at each call. `chunk` as in `bounds`; without `biased` the bias is None. torch's stream
    of random numbers stays as it is."""
    generator = torch.Generator(device)
    generator.seed()
    matmul = torch.backends.cuda.matmul
    precise = "allow_bf16_reduced_precision_reduction" if dtype is torch.bfloat16 else _FP16
    before = getattr(matmul, precise)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator).to(dtype)

    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        a, stored = normal(m, k), normal(*((n, k) if transposed else (k, n)))
        b, bias = stored.t() if transposed else stored, normal(n) if biased else None
        found = multiply(a, b, bias)
        if found is None:
            return True
        try:
            setattr(matmul, precise, False)  # more precise, if another thread sees it
            expected = _torchs(a, b, bias) if device.type == "cuda" else _torchs(*_wide(a, b, bias)).to(dtype)
        finally:
            setattr(matmul, precise, before)
        return agrees(found, expected, k, chunk)


_FP16 = "allow_fp16_reduced_precision_reduction"


def _torchs(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return a @ b if bias is None else torch.addmm(bias, a, b)


def _wide(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if one is None else one.float() for one in tensors)


def bounds(k: int, chunk: int) -> tuple[float, float]:
    """Of two results of K products each: in RMS, in units of their type's rounding error, and what one element may lose
    beside its own rounding. `chunk` is how many products are summed before an fp16 accumulator rounds, 0 for an fp32
    one."""
    if not chunk:
        return 0.8, k * 2.0**-24 * 2 * math.sqrt(k)
    steps = -(-k // chunk)
    walk = math.sqrt(1 + chunk * (steps - 1) * steps / (2 * k))
    return 1.15 * math.sqrt(2) * walk, steps * 2.0**-11 * 2 * math.sqrt(k)


def agrees(found: Tensor, expected: Tensor, k: int, chunk: int) -> bool:
    """Whether two results [M, N] of N(0,1) matrices, of one type, are within the bounds of each other. Waits for the
    device once."""
    limit, loss = bounds(k, chunk)
    type_of = torch.finfo(found.dtype)
    least = max(type_of.smallest_normal * type_of.eps, torch.finfo(torch.float32).smallest_normal)
    rows = max(1, _STEP // expected.shape[1])
    sums = []
    for one, other in zip(found.split(rows), expected.split(rows)):
        wide = other.float()
        power = (wide.view(torch.int32) & 0x7F800000).view(torch.float32)  # 2 to the exponent of each value
        step = power.mul_(type_of.eps).clamp_min_(least)
        error = one.float().sub_(wide).abs_()
        inside = (error <= step.add(loss).mul_(2)).all()  # NaN is not inside
        squares, rounding = (values.square_().sum(dtype=torch.float64) for values in (error, step))
        sums.append(torch.stack([squares, rounding / 12, (~inside).double()]))
    errors, rounding, outside = torch.stack(sums).sum(0).tolist()
    return not outside and math.sqrt(errors / rounding) <= limit
