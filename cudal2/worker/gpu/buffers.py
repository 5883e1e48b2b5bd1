"""Where a problem's buffers lie in the one range of device memory that referee and runner share. Pure arithmetic.

Sets of operands (A, B, what more a kernel is given, C) follow one another at a constant stride, each operand between
guard bands; the workspace comes last.
There are so many sets that the L2 holds only a part of them: a call finds its inputs in memory, whatever it or those
before it may have fetched ahead.
"""

import random
import secrets
from collections.abc import Sequence

import msgspec

from cudal2 import operators
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem

Place = tuple[int, ...]
"""Addresses that one call is given: of each operand, in the order of `operators.operands`, then of the workspace."""
GUARD = 1024
"""Bytes of secret pattern on either side of an operand."""
ROTATED = 200 << 20
"""Bytes of operands that a pass over all sets touches at least: several times the L2 of the cards of today."""
MAX_SETS = 4096
GRANULE = 2 << 20
RESERVED = 64 << 30
"""Bytes of addresses that planner and runner reserve: that of range.h."""
BASES = range(1 << 40, 0x7E << 40, 32 << 20)
"""Where these may begin. The driver gives what it is asked for, if that is a multiple of 32 MiB and free."""


def addresses(problem: Problem) -> tuple[str, ...]:
    """What the addresses of a Place are those of, by name."""
    return (*(operand.name for operand in operators.operands(problem)), "workspace")


def draw_base() -> int:
    """An address for the buffers to begin at: none tells a kernel that it is being judged."""
    return secrets.choice(BASES)


class BufferLayout(msgspec.Struct, frozen=True):
    """Offsets in bytes: those of the operands, in order, from the start of a set, and `workspace` from the start of the
    range of `bytes`."""

    problem: Problem
    sets: int
    stride: int
    offsets: tuple[int, ...]
    workspace: int
    bytes: int

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each operand of a set ends, as the offsets say where it begins."""
        return tuple(start + size for start, size in zip(self.offsets, _sizes(self.problem)))

    @property
    def log_words(self) -> int:
        """So many words of 16 bits, the last of the range, are where histories keep elements of outputs."""
        return GRANULE // 2

    def places(self, base: int) -> list[Place]:
        """What a call on each set is given, where the range begins at that address."""
        starts = [base + number * self.stride for number in range(self.sets)]
        return [(*(at + offset for offset in self.offsets), base + self.workspace) for at in starts]


def buffer_layout(problem: Problem, rotated: int = ROTATED) -> BufferLayout:
    """The range for `problem`: at least two sets, at most MAX_SETS, `rotated` bytes of matrices where that allows.

    Raises ValueError where two sets do not fit the addresses that planner and runner reserve.
    """
    sets = max(2, min(MAX_SETS, -(-rotated // operators.nbytes(problem))))
    offsets, end = [], 0
    for size in _sizes(problem):
        offsets.append(_up(end + GUARD))
        end = offsets[-1] + size
    stride = _up(end)  # the next set's first guard follows
    workspace = _up(sets * stride + GUARD, GRANULE)
    total = workspace + CUDA_CONTRACT.workspace_limit + GRANULE
    if total > RESERVED:
        raise ValueError(f"{problem.name}: two sets of its operands take {total >> 30} GiB, at most 64 are addressed")
    return BufferLayout(problem, sets, stride, tuple(offsets), workspace, total)


def scattered(problem: Problem, count: int, rng: random.Random, base: int) -> list[Place]:
    """`count` places anywhere in the addresses reserved from `base` on, the buffers of each far from each other, in
    any order.

    Between places no two buffers keep their distance, and every bit of an address from the alignment up to the length
    of the range changes. Raises ValueError where a buffer is longer than its part of the range.
    """
    step, sizes = CUDA_CONTRACT.alignment, (*_sizes(problem), CUDA_CONTRACT.workspace_limit)
    part = RESERVED // len(sizes) // GRANULE * GRANULE
    if max(sizes) > part:
        raise ValueError(f"{problem.name}: an operand of {max(sizes) >> 30} GiB, at most {part >> 30} are addressed")

    def address(slot: int, size: int) -> int:
        return base + slot * part + step * rng.randrange((part - size) // step + 1)

    slots = range(len(sizes))
    return [tuple(map(address, rng.sample(slots, len(sizes)), sizes)) for _ in range(count)]


def range_of(problem: Problem, places: Sequence[Place], base: int) -> int:
    """Bytes from `base` on that hold the buffers of every place, workspaces of the largest size too."""
    sizes = (*_sizes(problem), CUDA_CONTRACT.workspace_limit)
    return max(start + size for place in places for start, size in zip(place, sizes, strict=True)) - base


def _sizes(problem: Problem) -> list[int]:
    """Bytes of the operands."""
    return [2 * operand.elements for operand in operators.operands(problem)]


def _up(number: int, multiple: int = CUDA_CONTRACT.alignment) -> int:
    return -(-number // multiple) * multiple
