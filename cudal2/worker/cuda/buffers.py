"""Where a problem's buffers lie in the one range of device memory that referee and runner share. Pure arithmetic.

Sets of A, B and C follow one another at a constant stride, each matrix between guard bands; the workspace comes last.
There are so many sets that the L2 holds only a part of them: a call finds its inputs in memory, whatever it or those
before it may have fetched ahead.
"""

import random
import secrets
from collections.abc import Sequence

import msgspec

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker.cuda.plan import Place

GUARD = 1024
"""Bytes of secret pattern on either side of a matrix."""
ROTATED = 200 << 20
"""Bytes of A, B and C that a pass over all sets touches at least: several times the L2 of the cards of today."""
MAX_SETS = 4096
GRANULE = 2 << 20
RESERVED = 64 << 30
"""Bytes of addresses that planner and runner reserve: that of range.h."""
BASES = range(1 << 40, 0x7E << 40, 32 << 20)
"""Where these may begin. The driver gives what it is asked for, if that is a multiple of 32 MiB and free."""


def draw_base() -> int:
    """An address for the buffers to begin at: none tells a kernel that it is being judged."""
    return secrets.choice(BASES)


class BufferLayout(msgspec.Struct, frozen=True):
    """Offsets in bytes: `a`, `b`, `c` from the start of a set, `workspace` from the start of the range of `bytes`."""

    problem: Problem
    sets: int
    stride: int
    a: int
    b: int
    c: int
    workspace: int
    bytes: int

    def places(self, base: int) -> list[Place]:
        """What a call on each set is given, where the range begins at that address."""
        starts = [base + number * self.stride for number in range(self.sets)]
        return [Place(at + self.a, at + self.b, at + self.c, base + self.workspace) for at in starts]


def buffer_layout(problem: Problem, rotated: int = ROTATED) -> BufferLayout:
    """The range for `problem`: at least two sets, at most MAX_SETS, `rotated` bytes of matrices where that allows.

    Raises ValueError where two sets do not fit the addresses that planner and runner reserve.
    """
    sets = max(2, min(MAX_SETS, -(-rotated // problem.bytes)))
    a = GUARD
    b = _up(a + 2 * problem.m * problem.k + GUARD)
    c = _up(b + 2 * problem.k * problem.n + GUARD)
    stride = _up(c + 2 * problem.m * problem.n)  # the next set's first guard follows
    workspace = _up(sets * stride + GUARD, GRANULE)
    total = workspace + CUDA_CONTRACT.workspace_limit + GRANULE
    if total > RESERVED:
        raise ValueError(f"{problem.name}: two sets of its matrices take {total >> 30} GiB, at most 64 are addressed")
    return BufferLayout(problem, sets, stride, a, b, c, workspace, total)


def scattered(problem: Problem, count: int, rng: random.Random, base: int) -> list[Place]:
    """`count` places anywhere in the addresses reserved from `base` on, the four buffers of each far from each other,
    in any order.

    Between places no two buffers keep their distance, and every bit of an address from the alignment up to the length
    of the range changes. Raises ValueError where a buffer is longer than a quarter of the range.
    """
    quarter, step, sizes = RESERVED // 4, CUDA_CONTRACT.alignment, _sizes(problem)
    if max(sizes) > quarter:
        raise ValueError(f"{problem.name}: a matrix of {max(sizes) >> 30} GiB, at most {quarter >> 30} are addressed")

    def address(slot: int, size: int) -> int:
        return base + slot * quarter + step * rng.randrange((quarter - size) // step + 1)

    return [Place(*map(address, rng.sample(range(4), 4), sizes)) for _ in range(count)]


def range_of(problem: Problem, places: Sequence[Place], base: int) -> int:
    """Bytes from `base` on that hold the four buffers of every place."""
    return max(start + size for place in places for start, size in zip(place, _sizes(problem))) - base


def _sizes(problem: Problem) -> tuple[int, int, int, int]:
    """Bytes of a place's buffers; of the workspace, what a kernel may at most ask for."""
    m, n, k = problem.m, problem.n, problem.k
    return 2 * m * k, 2 * k * n, 2 * m * n, CUDA_CONTRACT.workspace_limit


def _up(number: int, multiple: int = CUDA_CONTRACT.alignment) -> int:
    return -(-number // multiple) * multiple
