"""What the operands hold when a candidate is checked: fresh, secret, and chosen so that every shortcut shows.

Zero-mean normals make the error statistic ρ exact about precision (all-positive data hide faults), and scaled unevenly
along K they leave a shared scale, as of fixed point, without digits. Integers small enough that every partial sum is
exact must come out bit for bit, rounded once. Wide odd integers against a sparse ±1 matrix lose their low bits in any
format narrower than the problem's. All are tensors of the problem's type on the generator's device.

What an operator is given beside A and B is about as large as the product, √K: a call that left it out, or had an old
one, would else be taken for rounding where sums are long.
"""

import math
import os
import secrets
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.dtype import DType
from cudal2.problem import Problem

EXACT_SUM = {"f32": 1 << 24, "f16": 1 << 11}
"""Largest integer up to which every partial sum is exact in the accumulator."""
SMALLEST = 10
"""Numbers are kept from being smaller than 2 to minus this power where their exponents are changed."""
MOST_UNEVEN, SMALLER = 24, 4
"""See `uneven`. By up to two to the latter power columns of further operands are smaller than the product."""
DRAWN = 1 << 24
"""Normals drawn at once: bounds the fp32 copy of them."""

Tensors = tuple[Tensor, ...]
"""One for each of `operators.inputs(problem)`, in their order."""


def element(problem: Problem) -> torch.dtype:
    """The problem's type, as PyTorch calls it."""
    return getattr(torch, problem.type.torch)


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of an operand, of which a vector is a matrix of one row."""
    rows, columns = (1,) * (2 - len(shape)) + shape
    return rows, columns


def uneven(dtype: DType) -> int:
    """By up to two to which power elements of A are scaled, up or down: nothing leaves the normal numbers of the type.

    That is 4 in fp16. A type of a wider range is used beyond fp16's (2^-24 to 2^16): whoever computes with fp16 in its
    place is as exact or more on numbers of everyday size, and has zeros and infinities here.
    """
    return min(MOST_UNEVEN, -dtype.least - SMALLEST)


def product_power(k: int) -> int:
    """The power of two next to √K, the standard deviation of a product of normals."""
    return round(math.log2(k) / 2)


def generator(device: str | torch.device = "cpu") -> torch.Generator:
    """Seeded with 64 bits of the operating system's entropy.

    On a processor PyTorch keeps 32 of them (https://github.com/pytorch/pytorch, `MT19937RNGEngine.h`): what one
    generator has yielded may tell what it will yield, so take a new one for every candidate.
    """
    return torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8)))


def fill_normal(rng: torch.Generator, tensor: Tensor) -> None:
    """Overwrite a tensor, strided or not, with N(0,1); drawn in fp32, whose tails reach beyond those of 16 bits."""
    for part in tensor.split(max(1, DRAWN * len(tensor) // tensor.numel())):
        part.copy_(torch.randn(part.shape, generator=rng, device=rng.device))


def words(tensor: Tensor) -> np.ndarray:
    """The bits of a contiguous tensor of a 16-bit type on a processor, flat, in the same memory."""
    return tensor.view(torch.int16).numpy().view(np.uint16).reshape(-1)


def flip_signs(tensor: Tensor) -> None:
    """Give every element of a contiguous tensor on a processor a new, secret sign: a tenth of the time that new normals
    take, and no sum over products of the old ones is of use."""
    bits = words(tensor)
    signs = np.unpackbits(np.frombuffer(os.urandom(-(-len(bits) // 8)), np.uint8), count=len(bits))
    bits ^= signs.astype(np.uint16) << 15


def keep_from_zero(tensor: Tensor, dtype: DType) -> None:
    """Give the few elements of a contiguous tensor on a processor that are below 2^-SMALLEST that much at least, so
    that powers of two may be taken out of their exponents."""
    bits = words(tensor)
    least = (dtype.greatest - SMALLEST) << dtype.exponent_at
    small = np.flatnonzero((bits & dtype.infinity) < least)
    bits[small] = (bits[small] & ~np.uint16(dtype.infinity)) | least


def uneven_powers(problem: Problem) -> tuple[np.ndarray, ...]:
    """What to add to the bits of each input operand, as 16-bit words that wrap, a row or a column for its matrix (a
    vector is a matrix of one row): secret powers of two as in `fill_uneven`. Its numbers must be kept from zero."""
    rng, dtype = np.random.default_rng(secrets.randbits(128)), problem.type
    most = uneven(dtype)

    def line(low: int, high: int, length: int) -> np.ndarray:
        drawn = rng.integers(low, high + 1, size=length)
        return (drawn << dtype.exponent_at).astype(np.int16).view(np.uint16)[None]

    along_k, power = line(-most, most, problem.k), product_power(problem.k)
    minus = -along_k
    more = (line(power - SMALLER, power, operand.shape[-1]) for operand in operators.inputs(problem)[2:])
    return along_k, minus if problem.layout == "tn" else minus.T, *more


def poison(tensor: Tensor) -> None:
    """Fill an output with NaN: what a kernel then leaves unwritten shows."""
    tensor.fill_(math.nan)


def _made(rng: torch.Generator, problem: Problem, fill: Callable[[Sequence[Tensor]], object]) -> Tensors:
    """Room for every input operand, filled as one set of each."""
    shapes = [operand.shape for operand in operators.inputs(problem)]
    given = tuple(torch.empty(shape, dtype=element(problem), device=rng.device) for shape in shapes)
    fill([tensor[None] for tensor in given])
    return given


def normal(rng: torch.Generator, problem: Problem) -> Tensors:
    """A [M,K] and B as stored, both N(0,1), and what more there is, as `fill_uneven` fills it."""

    def fill(given: Sequence[Tensor]) -> None:
        for tensor in given[:2]:
            fill_normal(rng, tensor)
        _fill_more(rng, given[2:], problem)

    return _made(rng, problem, fill)


def uneven_normal(rng: torch.Generator, problem: Problem) -> Tensors:
    """A [M,K], B as stored, and what more there is, as `fill_uneven` fills them."""
    return _made(rng, problem, lambda given: fill_uneven(rng, given, problem))


def fill_uneven(rng: torch.Generator, given: Sequence[Tensor], problem: Problem) -> Tensor:
    """Overwrite the input operands A [sets,M,K], B [sets,*b_shape] and what more there is [sets,…] with normals.

    Column k of A is multiplied by a power of two, and row k of B divided by it: the same products, while fixed point,
    or anything else with one scale for all of a matrix, loses the digits of most of them. Returns these powers [sets,K]
    as int8. The others have about the size of the product, √K, and of their columns some are smaller.
    """
    a, b, *more = given
    fill_normal(rng, a)
    fill_normal(rng, b)
    powers = _powers(rng, uneven(problem.type), (len(a), problem.k))
    scale = torch.exp2(powers.float()).to(a.dtype)
    a *= scale[:, None]
    b *= 1 / (scale[:, None] if problem.layout == "tn" else scale[:, :, None])
    _fill_more(rng, more, problem)
    return powers


def _fill_more(rng: torch.Generator, more: Sequence[Tensor], problem: Problem) -> None:
    for tensor in more:
        fill_normal(rng, tensor)
        smaller = _powers(rng, SMALLER, (len(tensor), tensor.shape[-1])).abs_()
        scale = torch.exp2(product_power(problem.k) - smaller.float()).to(tensor.dtype)
        tensor *= scale.view(len(tensor), *(1,) * (tensor.dim() - 2), tensor.shape[-1])


def _powers(rng: torch.Generator, most: int, shape: tuple[int, ...]) -> Tensor:
    """Uniform from -most to most, int8."""
    return torch.randint(-most, most + 1, shape, generator=rng, device=rng.device, dtype=torch.int8)


def exact_integers(rng: torch.Generator, problem: Problem) -> Tensors:
    """Uniform integers whose Σ|a||b|, and what is added to it, stay below EXACT_SUM, and whose sums fit the type with
    six sigma to spare.

    Where K is so long that even ±1 would exceed the accumulator's exact range, B keeps only as many nonzero
    entries in each column as it can take.
    """
    sums, k, dtype = EXACT_SUM[problem.accumulate], problem.k, problem.type
    added = min(dtype.integers - 1, sums // 8)
    more = _more_integers(rng, problem, added)
    limit = sums - added * len(more)
    nonzero = min(k, limit // 4)
    fits = math.sqrt(dtype.largest * 3 / (6 * math.sqrt(nonzero)))
    high = max(1, int(min(math.sqrt(limit / nonzero), fits, dtype.integers - 1)))
    a = _integers(rng, problem, -high, high, problem.m, k)
    b = sparse(rng, _integers(rng, problem, -high, high, k, problem.n), nonzero)
    return a, stored(problem, b), *more


def wide_integers(rng: torch.Generator, problem: Problem) -> Tensors:
    """Odd integers in A that need all digits of the type (11 bits in fp16, 8 in bf16); in every column of B a few ±1
    (one where the accumulator is fp16), else 0; elsewhere as large ones as leave the sums exact."""
    sums, dtype = EXACT_SUM[problem.accumulate], problem.type
    nonzero = 1 if problem.accumulate == "f16" else min(16, problem.k)
    half = dtype.integers // 4
    odd = _integers(rng, problem, -half, half - 1, problem.m, problem.k).mul_(2).add_(1)
    odd.add_(odd.sign(), alpha=dtype.integers // 2)
    ones = _integers(rng, problem, 0, 1, problem.k, problem.n).mul_(2).sub_(1)
    most = min(dtype.integers - 1, sums - nonzero * (dtype.integers - 1))
    return odd, stored(problem, sparse(rng, ones, nonzero)), *_more_integers(rng, problem, most)


def _more_integers(rng: torch.Generator, problem: Problem, most: int) -> Tensors:
    """Uniform from -most to most, in what a kernel is given beside A and B."""
    return tuple(_integers(rng, problem, -most, most, *operand.shape) for operand in operators.inputs(problem)[2:])


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


def _integers(rng: torch.Generator, problem: Problem, low: int, high: int, *shape: int) -> Tensor:
    """Uniform from `low` to `high` inclusive, which the problem's type holds exactly."""
    return torch.randint(low, high + 1, shape, generator=rng, dtype=element(problem), device=rng.device)
