"""What the matrices hold when a candidate is checked: fresh, secret, and chosen so that every shortcut shows.

Zero-mean normals make the error statistic ρ exact about precision (all-positive data hide faults). Integers small
enough that every partial sum is exact must come out bit for bit. Wide odd integers against a sparse ±1 matrix
lose their low bits in any format narrower than fp16.
"""

import math
import os

import numpy as np

from cudal2.problem import Problem

EXACT_SUM = {"f32": 1 << 24, "f16": 1 << 11}
"""Largest integer up to which every partial sum is exact in the accumulator."""
FP16_MAX = 65504.0


def generator() -> np.random.Generator:
    """Seeded from the operating system's entropy: nobody can foretell what it yields."""
    return np.random.Generator(np.random.SFC64(int.from_bytes(os.urandom(32))))


def normals(rng: np.random.Generator, count: int) -> np.ndarray:
    """`count` draws from N(0,1), as float16."""
    return rng.standard_normal(count, dtype=np.float32).astype(np.float16)


def normal(rng: np.random.Generator, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """A [M,K] and B as stored, both N(0,1)."""
    a = normals(rng, problem.m * problem.k).reshape(problem.m, problem.k)
    return a, normals(rng, problem.k * problem.n).reshape(problem.b_shape)


def exact_integers(rng: np.random.Generator, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Uniform integers whose Σ|a||b| stays below EXACT_SUM and whose sums fit fp16 with six sigma to spare.

    Where K is so long that even ±1 would exceed the accumulator's exact range, B keeps only as many nonzero
    entries in each column as it can take.
    """
    limit, k = EXACT_SUM[problem.accumulate], problem.k
    nonzero = min(k, limit // 4)
    largest = min(math.sqrt(limit / nonzero), math.sqrt(FP16_MAX * 3 / (6 * math.sqrt(nonzero))), 2047)
    high = max(1, int(largest))
    a = rng.integers(-high, high, (problem.m, k), endpoint=True)
    b = rng.integers(-high, high, (k, problem.n), endpoint=True) * sparse(rng, problem, nonzero)
    return a.astype(np.float16), stored(problem, b.astype(np.float16))


def wide_integers(rng: np.random.Generator, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Odd 11-bit integers in A; in every column of B a few ±1 (one where the accumulator is fp16), else 0."""
    nonzero = 1 if problem.accumulate == "f16" else min(16, problem.k)
    odd = rng.integers(512, 1024, (problem.m, problem.k)) * 2 + 1
    signs = rng.integers(0, 2, (problem.m, problem.k)) * 2 - 1
    ones = (rng.integers(0, 2, (problem.k, problem.n)) * 2 - 1) * sparse(rng, problem, nonzero)
    return (odd * signs).astype(np.float16), stored(problem, ones.astype(np.float16))


def sparse(rng: np.random.Generator, problem: Problem, nonzero: int) -> np.ndarray:
    """A K×N mask with at most `nonzero` ones in each column, at random rows."""
    if nonzero >= problem.k:
        return np.ones((problem.k, problem.n), dtype=np.int8)
    mask = np.zeros((problem.k, problem.n), dtype=np.int8)
    rows = rng.integers(0, problem.k, (nonzero, problem.n))
    mask[rows, np.arange(problem.n)] = 1
    return mask


def stored(problem: Problem, b: np.ndarray) -> np.ndarray:
    """B [K,N] in the order the problem's layout stores it."""
    return np.ascontiguousarray(b.T) if problem.layout == "tn" else b
