"""Buffers do not overlap, guards lie on either side of each, and a pass over the sets empties the L2."""

from itertools import pairwise

import pytest

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker.cuda.buffers import GUARD, MAX_SETS, ROTATED, buffer_layout

SHAPES = [(8, 8, 8), (64, 64, 64), (200, 968, 1048), (4096, 4096, 4096), (16384, 16384, 16384)]


@pytest.mark.parametrize("shape", SHAPES)
def test_regions_are_apart(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape)
    at = buffer_layout(problem)
    sizes = {"a": problem.m * problem.k, "b": problem.k * problem.n, "c": problem.m * problem.n}
    regions = sorted((getattr(at, name), getattr(at, name) + 2 * size) for name, size in sizes.items())
    assert regions[0][0] >= GUARD
    for (_, end), (start, _) in pairwise(regions):
        assert start - end >= GUARD
    assert regions[-1][1] <= at.stride
    assert at.workspace >= at.sets * at.stride + GUARD  # the last C has a guard behind it too
    assert at.bytes > at.workspace + CUDA_CONTRACT.workspace_limit
    assert all(number % CUDA_CONTRACT.alignment == 0 for number in (at.a, at.b, at.c, at.stride, at.workspace))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_touches_enough(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape)
    at = buffer_layout(problem)
    assert at.sets >= 2
    assert at.sets == MAX_SETS or at.sets * problem.bytes >= min(ROTATED, 2 * problem.bytes)


def test_what_cannot_be_addressed_is_said_so() -> None:
    with pytest.raises(ValueError, match="GiB"):
        buffer_layout(Problem(1 << 17, 1 << 17, 1 << 15))
