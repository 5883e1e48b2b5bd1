"""Who uses other inputs than it should is found out, however wide the bounds of single elements are."""

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from cudal2 import operators
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import parse
from cudal2.records import Status
from cudal2.worker import inputs, limits, stale, verify
from cudal2.worker.gpu import buffers, changes
from cudal2.worker.gpu.arena import Arena
from cudal2.worker.gpu.history import History, draw

CHUNK, SETS = 16, 12
PROBLEMS = [
    *("64_64_8192_tn_f16", "64_64_2048_tn_f16", "64_64_4096_tn_f32", "512_8_512_tn_f16"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("64_128_4096_nn_f16", "128_64_16384_nn_f16")),
    pytest.param("16_512_8192_nn_f32", marks=pytest.mark.slow),
    *(
        "64_64_512_tn_f32_bf16",
        "17_64_512_nn_f32_bf16_bias",
        "40_64_256_tn_f32_fp16_bias",
        "33_64_512_tn_f32_bf16_bias_gelu",
    ),
]


@pytest.fixture(params=PROBLEMS)
def arena(request, monkeypatch) -> Arena:
    monkeypatch.setattr(buffers, "CUDA_CONTRACT", replace(CUDA_CONTRACT, workspace_limit=64 << 10))
    monkeypatch.setattr(buffers, "GRANULE", 4096)
    problem = parse(request.param)
    layout = buffers.buffer_layout(problem, rotated=operators.nbytes(problem) * SETS)
    return Arena(layout, torch.zeros(layout.bytes // 2, dtype=torch.int16), inputs.generator())


def products(arena: Arena) -> torch.Tensor:
    a, b, *_ = (matrix.float() for matrix in arena.inputs)
    return a @ (b.transpose(1, 2) if arena.problem.layout == "tn" else b)


def results(arena: Arena) -> torch.Tensor:
    """The products finished, in fp32."""
    more = [operand.float()[:, None] for operand in arena.inputs[2:]]
    return operators.find(arena.problem.epilogue).finish(products(arena), more)


def as_honest(arena: Arena, exact: torch.Tensor) -> torch.Tensor:
    """What sums in the problem's accumulator give: each element is off by as much as may be in the mean."""
    unit = verify.ulp(exact.to(arena.c.dtype)).square().mean().div(12).sqrt()
    error = math.sqrt(max(limits.rho_limit(arena.problem.accumulate, arena.problem.k, CHUNK) ** 2 - 1, 0))
    return (exact + error * unit * torch.randn(exact.shape)).to(arena.c.dtype)


def lived(arena: Arena) -> tuple[History, torch.Tensor, torch.Tensor]:
    """A history that the arena's inputs have gone through; the products that its calls should give, and those of the
    inputs before it.
    """
    arena.fill(slice(None))
    order = torch.randperm(arena.buffers.sets).tolist()
    history = draw(order, arena.inputs, arena.powers, arena.problem, np.random.default_rng())
    before = results(arena)
    history.apply(arena.inputs)
    return history, results(arena), before


def judged(arena: Arena, history: History, result: torch.Tensor, reference: torch.Tensor) -> list[verify.Finding]:
    found, made = list[verify.Finding](), products(arena)
    for operand in range(len(arena.inputs)):
        lines = changes.lines(history, arena.problem, result, reference, arena.inputs, operand, made)
        found += filter(None, [stale.check(*lines, arena.problem, CHUNK)])
    return found


def test_results_of_other_inputs_are_found_out_and_honest_ones_never(arena: Arena) -> None:
    for _ in range(4):
        history, right, wrong = lived(arena)
        reference = as_honest(arena, right)
        assert history.changes.sum() == int((right != wrong).flatten(1).any(1).sum()) >= 2
        found = judged(arena, history, wrong.to(arena.c.dtype), reference)
        assert found and all(status is Status.WRONG for status, _ in found)
        assert judged(arena, history, as_honest(arena, right), reference) == []
        assert judged(arena, history, reference, reference) == []


def test_one_such_call_is_enough(arena: Arena) -> None:
    history, right, wrong = lived(arena)
    result = as_honest(arena, right)
    number = int(history.number[history.changes][0])
    result[number] = wrong[number].to(arena.c.dtype)
    assert judged(arena, history, result, as_honest(arena, right))


def test_the_lines_are_moved_by_just_so_much(arena: Arena) -> None:
    history, right, wrong = lived(arena)
    made = products(arena)
    for operand in range(len(arena.inputs)):
        found, wanted, moved = changes.lines(history, arena.problem, wrong, right, arena.inputs, operand, made)
        torch.testing.assert_close(found - wanted, moved, atol=2e-2, rtol=0)
