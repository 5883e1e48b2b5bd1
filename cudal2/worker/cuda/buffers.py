"""Where a problem's buffers lie in the one range of device memory that referee and runner share. Pure arithmetic.

Sets of A, B and C follow one another at a constant stride, each matrix between guard bands; the workspace comes last.
There are so many sets that the L2 holds only a part of them: a call finds its inputs in memory, whatever it or those
before it may have fetched ahead.
"""

import msgspec

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem

GUARD = 1024
"""Bytes of secret pattern on either side of a matrix."""
ROTATED = 200 << 20
"""Bytes of A, B and C that a pass over all sets touches at least: several times the L2 of the cards of today."""
MAX_SETS = 4096
GRANULE = 2 << 20

Perturbation = tuple[int, int]
"""Where in the range, in bytes, an fp16 value is written, and its bits as an int16."""


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
    if total > 64 << 30:
        raise ValueError(f"{problem.name}: two sets of its matrices take {total >> 30} GiB, at most 64 are addressed")
    return BufferLayout(problem, sets, stride, a, b, c, workspace, total)


def _up(number: int, multiple: int = CUDA_CONTRACT.alignment) -> int:
    return -(-number // multiple) * multiple
