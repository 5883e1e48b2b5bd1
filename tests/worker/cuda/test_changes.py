"""Who computes from the inputs as they were before is found out, however wide the bounds of single elements are."""

import math

import pytest
import torch
from msgspec.structs import replace

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import parse
from cudal2.records import Status
from cudal2.worker import inputs, verify
from cudal2.worker.cuda import buffers, changes
from cudal2.worker.cuda.arena import Arena

CHUNK, SETS = 16, 12
PROBLEMS = [
    *("64_64_8192_tn_f16", "64_128_4096_nn_f16", "128_64_16384_nn_f16", "64_64_2048_tn_f16"),
    *("64_64_4096_tn_f32", "16_512_8192_nn_f32", "512_8_512_tn_f16"),
]


@pytest.fixture(params=PROBLEMS)
def arena(request, monkeypatch) -> Arena:
    monkeypatch.setattr(buffers, "CUDA_CONTRACT", replace(CUDA_CONTRACT, workspace_limit=64 << 10))
    monkeypatch.setattr(buffers, "GRANULE", 4096)
    problem = parse(request.param)
    layout = buffers.buffer_layout(problem, rotated=problem.bytes * SETS)
    return Arena(layout, torch.zeros(layout.bytes // 2, dtype=torch.int16), inputs.generator())


def products(arena: Arena) -> torch.Tensor:
    a, b = (matrix.float() for matrix in arena.inputs)
    return a @ (b.transpose(1, 2) if arena.problem.layout == "tn" else b)


def as_honest(arena: Arena, exact: torch.Tensor) -> torch.Tensor:
    """What sums in the problem's accumulator give: each element is off by as much as may be in the mean."""
    unit = verify.ulp16(exact.half()).square().mean().div(12).sqrt()
    error = math.sqrt(max(verify.rho_limit(arena.problem.accumulate, arena.problem.k, CHUNK) ** 2 - 1, 0))
    return (exact + error * unit * torch.randn(exact.shape)).half()


def judged(arena: Arena, result: torch.Tensor, reference: torch.Tensor) -> list[verify.Finding]:
    found = []
    for second, places in enumerate(arena.changed):
        lines = changes.lines(arena.problem, result, reference, *arena.inputs, bool(second), places)
        found.append(changes.check(*lines, arena.problem, CHUNK))
    return [finding for finding in found if finding]


def test_results_of_the_inputs_before_are_found_out_and_honest_ones_never(arena: Arena) -> None:
    arena.fill(slice(None))
    for _ in range(6):
        before = products(arena)
        arena.perturb(range(arena.buffers.sets))
        after = products(arena)
        reference = as_honest(arena, after)
        moved = sum(len(places[0]) for places in arena.changed)
        assert moved == int((before != after).flatten(1).any(1).sum()) >= 2
        found = judged(arena, before.half(), reference)
        assert found and all(status is Status.WRONG for status, _ in found)
        assert judged(arena, as_honest(arena, after), reference) == []
        assert judged(arena, reference, reference) == []


def test_one_call_that_did_not_look_is_enough(arena: Arena) -> None:
    arena.fill(slice(None))
    before = products(arena)
    arena.perturb(range(arena.buffers.sets))
    after = products(arena)
    result = as_honest(arena, after)
    second, (sets, *_) = next((n, places) for n, places in enumerate(arena.changed) if len(places[0]))
    result[sets[0]] = before[sets[0]].half()
    assert judged(arena, result, as_honest(arena, after)), f"in {'AB'[second]}"


def test_the_lines_are_moved_by_just_so_much(arena: Arena) -> None:
    arena.fill(slice(None))
    before = products(arena)
    arena.perturb(range(arena.buffers.sets))
    after = products(arena)
    for second, places in enumerate(arena.changed):
        found, wanted, moved = changes.lines(arena.problem, before, after, *arena.inputs, bool(second), places)
        torch.testing.assert_close(wanted - found, moved, atol=2e-2, rtol=0)
