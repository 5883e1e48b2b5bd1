"""What the matrices hold when a candidate is checked: fresh, secret, and chosen so that every shortcut shows.

Zero-mean normals make the error statistic ρ exact about precision (all-positive data hide faults), and scaled unevenly
along K they leave a shared scale, as of fixed point, without digits. Integers small
enough that every partial sum is exact must come out bit for bit. Wide odd integers against a sparse ±1 matrix
lose their low bits in any format narrower than fp16. All are float16 tensors on the generator's device.
"""

import math
import os
import secrets

import numpy as np
import torch
from torch import Tensor

from cudal2.problem import Problem

EXACT_SUM = {"f32": 1 << 24, "f16": 1 << 11}
"""Largest integer up to which every partial sum is exact in the accumulator."""
FP16_MAX = 65504.0
POISON = 0x7E00
"""The bits of the fp16 NaN that `poison` writes."""
UNEVEN = 4
"""Elements of A are scaled by up to two to this power, up or down."""
EXPONENT, EXPONENT_BITS = 10, 0x7C00
"""Of a float16's bits: where its exponent begins, and which they are."""
DRAWN = 1 << 24
"""Normals drawn at once: bounds the fp32 copy of them."""


def generator(device: str | torch.device = "cpu") -> torch.Generator:
    """Seeded with 64 bits of the operating system's entropy.

    On a processor PyTorch keeps 32 of them (https://github.com/pytorch/pytorch, `MT19937RNGEngine.h`): what one
    generator has yielded may tell what it will yield, so take a new one for every candidate.
    """
    return torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8)))


def fill_normal(rng: torch.Generator, tensor: Tensor) -> None:
    """Overwrite a float16 tensor, strided or not, with N(0,1); drawn in fp32, whose tails reach beyond fp16's."""
    for part in tensor.split(max(1, DRAWN * len(tensor) // tensor.numel())):
        part.copy_(torch.randn(part.shape, generator=rng, device=rng.device))


def flip_signs(tensor: Tensor) -> None:
    """Give every element of a contiguous float16 tensor on a processor a new, secret sign: a tenth of the time that new
    normals take, and no sum over products of the old ones is of use."""
    words = tensor.numpy().view(np.uint16).reshape(-1)
    bits = np.unpackbits(np.frombuffer(os.urandom(-(-len(words) // 8)), np.uint8), count=len(words))
    words ^= bits.astype(np.uint16) << 15


def keep_from_zero(tensor: Tensor) -> None:
    """Give the few elements of a contiguous float16 tensor on a processor that are below 2^-10 that much at least, so
    that two to the power UNEVEN may be taken out of their exponents."""
    words = tensor.numpy().view(np.uint16).reshape(-1)
    least = (UNEVEN + 1) << EXPONENT
    small = np.flatnonzero((words & EXPONENT_BITS) < least)
    words[small] = (words[small] & ~np.uint16(EXPONENT_BITS)) | least


def uneven_powers(k: int) -> np.ndarray:
    """What to add to the bits of column k of A and to take from those of row k of B, as 16-bit words that wrap [K]: a
    secret power of two each, as in `uneven_normal`. Their numbers must be kept from zero."""
    powers = np.random.default_rng(secrets.randbits(128)).integers(-UNEVEN, UNEVEN + 1, size=k)
    return (powers << EXPONENT).astype(np.int16).view(np.uint16)


def poison(tensor: Tensor) -> None:
    """Fill an output with NaN: what a kernel then leaves unwritten shows."""
    tensor.fill_(math.nan)


def _empty(rng: torch.Generator, problem: Problem) -> tuple[Tensor, Tensor]:
    """Room for A [M,K] and B as stored."""
    shapes = (problem.m, problem.k), problem.b_shape
    a, b = (torch.empty(shape, dtype=torch.float16, device=rng.device) for shape in shapes)
    return a, b


def normal(rng: torch.Generator, problem: Problem) -> tuple[Tensor, Tensor]:
    """A [M,K] and B as stored, both N(0,1)."""
    a, b = _empty(rng, problem)
    fill_normal(rng, a)
    fill_normal(rng, b)
    return a, b


def uneven_normal(rng: torch.Generator, problem: Problem) -> tuple[Tensor, Tensor]:
    """A [M,K] and B as stored, as `fill_uneven` fills them."""
    a, b = _empty(rng, problem)
    fill_uneven(rng, a[None], b[None], problem)
    return a, b


def fill_uneven(rng: torch.Generator, a: Tensor, b: Tensor, problem: Problem) -> Tensor:
    """Overwrite float16 inputs A [sets,M,K] and B [sets,*b_shape] with normals, of which column k of A is multiplied by
    a power of two, and row k of B divided by it: the same products, while fixed point, or anything else with one scale
    for all of a matrix, loses the digits of most of them. Returns these powers [sets,K] as int8.
    """
    fill_normal(rng, a)
    fill_normal(rng, b)
    shape = (len(a), problem.k)
    powers = torch.randint(-UNEVEN, UNEVEN + 1, shape, generator=rng, device=rng.device, dtype=torch.int8)
    scale = torch.exp2(powers.float()).half()
    a *= scale[:, None]
    b *= 1 / (scale[:, None] if problem.layout == "tn" else scale[:, :, None])
    return powers


def exact_integers(rng: torch.Generator, problem: Problem) -> tuple[Tensor, Tensor]:
    """Uniform integers whose Σ|a||b| stays below EXACT_SUM and whose sums fit fp16 with six sigma to spare.

    Where K is so long that even ±1 would exceed the accumulator's exact range, B keeps only as many nonzero
    entries in each column as it can take.
    """
    limit, k = EXACT_SUM[problem.accumulate], problem.k
    nonzero = min(k, limit // 4)
    largest = min(math.sqrt(limit / nonzero), math.sqrt(FP16_MAX * 3 / (6 * math.sqrt(nonzero))), 2047)
    high = max(1, int(largest))
    a = _integers(rng, -high, high, problem.m, k)
    return a, stored(problem, sparse(rng, _integers(rng, -high, high, k, problem.n), nonzero))


def wide_integers(rng: torch.Generator, problem: Problem) -> tuple[Tensor, Tensor]:
    """Odd 11-bit integers in A; in every column of B a few ±1 (one where the accumulator is fp16), else 0."""
    nonzero = 1 if problem.accumulate == "f16" else min(16, problem.k)
    odd = _integers(rng, -512, 511, problem.m, problem.k).mul_(2).add_(1)
    ones = _integers(rng, 0, 1, problem.k, problem.n).mul_(2).sub_(1)
    return odd.add_(odd.sign(), alpha=1024), stored(problem, sparse(rng, ones, nonzero))


def sparse(rng: torch.Generator, matrix: Tensor, nonzero: int) -> Tensor:
    """Of each column of a K×N matrix at most `nonzero` entries, at random rows; 0 elsewhere."""
    k, n = matrix.shape
    if nonzero >= k:
        return matrix
    rows = torch.randint(k, (nonzero, n), generator=rng, device=rng.device)
    return torch.zeros_like(matrix).scatter_(0, rows, matrix.gather(0, rows))


def stored(problem: Problem, b: Tensor) -> Tensor:
    """B [K,N] in the order the problem's layout stores it."""
    return b.T.contiguous() if problem.layout == "tn" else b


def _integers(rng: torch.Generator, low: int, high: int, *shape: int) -> Tensor:
    """Uniform from `low` to `high` inclusive, which float16 holds exactly (at most 2048 in size)."""
    return torch.randint(low, high + 1, shape, generator=rng, dtype=torch.float16, device=rng.device)
