"""Tries a kernel once, before its first call on a device: one product of random matrices, compared with torch's.

A judge may be deceived, and a machine differ from the one that was judged on. What is wrong on any inputs shows here; a
kernel that is right at first and wrong later does not. The bounds are those of the judge's timed calls: of two honest
results, each rounded to fp16, both may be off.
"""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .held import Held
from .op import Place, Trial

CPU = 0
"""As torch numbers kinds of devices."""
_STEP = 1 << 22
"""Elements of a result that are compared together, which bounds what memory that takes."""


def of(held: Held, place: Place, accumulate: str) -> Trial:
    """What the table of `place`, which is open, asks before one of this folder's kernels serves. A warning names a
    kernel that is wrong."""
    attempt, on_gpu = torch.ops.cudal2.attempt_matmul.default, place.device_type != CPU
    # How many products are summed before a narrow accumulator rounds; an fp32 one needs no bound for that.
    chunk = (16 if held.on_gpu else 1) if accumulate == "f16" else 0

    def tried(m: int, n: int, k: int, transposed: bool, index: int) -> int:
        try:
            device = torch.device("cuda", index) if on_gpu else torch.device("cpu")
            right = is_right(m, n, k, transposed, device, chunk, lambda a, b: attempt(a, b, place.id))
        except (RuntimeError, MemoryError):  # no memory, most likely; torch says so if it has none for the call either
            return -1
        if not right:
            name = f"{m}_{n}_{k}_{'tn' if transposed else 'nn'}_{accumulate}"
            text = (
                f"cudal2: the kernel for {name} in {held.folder} does not give torch's product; torch serves its calls"
            )
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
    multiply: Callable[[Tensor, Tensor], Tensor | None],
) -> bool:
    """Whether `multiply(a, b)` of N(0,1) matrices is torch's product within the bounds; also where it gives none, for
    then it says itself why at each call. `chunk` as in `bounds`. torch's stream of random numbers stays as it is."""
    generator = torch.Generator(device)
    generator.seed()
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        a = torch.randn(m, k, device=device, generator=generator).half()
        stored = torch.randn(*((n, k) if transposed else (k, n)), device=device, generator=generator).half()
        b = stored.t() if transposed else stored
        found = multiply(a, b)
        if found is None:
            return True
        try:
            matmul.allow_fp16_reduced_precision_reduction = False  # more precise, if another thread sees it
            expected = a @ b if device.type == "cuda" else (a.float() @ b.float()).half()
        finally:
            matmul.allow_fp16_reduced_precision_reduction = before
        return agrees(found, expected, k, chunk)


def bounds(k: int, chunk: int) -> tuple[float, float]:
    """Of two results of K products each: in RMS, in units of fp16's rounding error, and what one element may lose
    beside its own rounding. `chunk` is how many products are summed before an fp16 accumulator rounds, 0 for an fp32
    one."""
    if not chunk:
        return 0.8, k * 2.0**-24 * 2 * math.sqrt(k)
    steps = -(-k // chunk)
    walk = math.sqrt(1 + chunk * (steps - 1) * steps / (2 * k))
    return 1.15 * math.sqrt(2) * walk, steps * 2.0**-11 * 2 * math.sqrt(k)


def agrees(found: Tensor, expected: Tensor, k: int, chunk: int) -> bool:
    """Whether two fp16 results [M, N] of N(0,1) matrices are within the bounds of each other. Waits for the device
    once."""
    limit, loss = bounds(k, chunk)
    rows = max(1, _STEP // expected.shape[1])
    sums = []
    for one, other in zip(found.split(rows), expected.split(rows)):
        wide = other.float()
        power = (wide.view(torch.int32) & 0x7F800000).view(torch.float32)  # 2 to the exponent of each value
        step = power.mul_(2.0**-10).clamp_min_(2.0**-24)
        error = one.float().sub_(wide).abs_()
        inside = (error <= step.add(loss).mul_(2)).all()  # NaN is not inside
        squares, rounding = (values.square_().sum(dtype=torch.float64) for values in (error, step))
        sums.append(torch.stack([squares, rounding / 12, (~inside).double()]))
    errors, rounding, outside = torch.stack(sums).sum(0).tolist()
    return not outside and math.sqrt(errors / rounding) <= limit
