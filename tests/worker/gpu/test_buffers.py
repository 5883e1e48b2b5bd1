"""Buffers do not overlap, guards lie on either side of each, and a pass over the sets empties the L2."""

from itertools import pairwise

import pytest

from cudal2 import operators
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem, parse
from cudal2.worker.gpu.buffers import GUARD, MAX_SETS, ROTATED, buffer_layout

SHAPES = ["8_8_8", "64_64_64", "200_968_1048", "4096_4096_4096", "16384_16384_16384"]
SHAPES += ["1_8_8_tn_f32_bf16", "3_1024_8_nn_f32_bf16_bias", "17_8_4096_tn_f32_fp16_bias_gelu"]


@pytest.mark.parametrize("shape", SHAPES)
def test_regions_are_apart(shape: str) -> None:
    problem = parse(shape)
    at = buffer_layout(problem)
    sizes = [2 * operand.elements for operand in operators.operands(problem)]
    regions = [(start, start + size) for start, size in zip(at.offsets, sizes, strict=True)]
    assert at.ends == tuple(end for _, end in regions)
    assert regions[0][0] >= GUARD
    for (_, end), (start, _) in pairwise(regions):
        assert start - end >= GUARD
    assert regions[-1][1] <= at.stride
    assert at.workspace >= at.sets * at.stride + GUARD  # the last C has a guard behind it too
    assert at.bytes > at.workspace + CUDA_CONTRACT.workspace_limit
    assert all(number % CUDA_CONTRACT.alignment == 0 for number in (*at.offsets, at.stride, at.workspace))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_touches_enough(shape: str) -> None:
    problem = parse(shape)
    at = buffer_layout(problem)
    assert at.sets >= 2
    assert at.sets == MAX_SETS or at.sets * operators.nbytes(problem) >= min(ROTATED, 2 * problem.bytes)


def test_what_cannot_be_addressed_is_said_so() -> None:
    with pytest.raises(ValueError, match="GiB"):
        buffer_layout(Problem(1 << 17, 1 << 17, 1 << 15))
