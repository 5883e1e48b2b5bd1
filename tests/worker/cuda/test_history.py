"""What a window's inputs go through: by itself, and as candidate and baseline live it."""

import numpy as np
import pytest
import torch
from fake_gpu import Candidate, FakeCalls, FakeVendor

from cudal2.problem import Problem
from cudal2.worker import inputs
from cudal2.worker.cuda import history
from cudal2.worker.cuda.history import History, draw

PROBLEMS = [Problem(16, 8, 24, "tn"), Problem(8, 24, 16, "nn")]


def drawn(problem: Problem, sets: int, seed: int = 0) -> tuple[History, torch.Tensor, torch.Tensor]:
    a = torch.empty(sets, problem.m, problem.k, dtype=torch.float16)
    b = torch.empty(sets, *problem.b_shape, dtype=torch.float16)
    rng = np.random.default_rng(seed)
    powers = inputs.fill_uneven(inputs.generator(), a, b, problem)
    return draw(rng.permutation(sets).tolist(), (a, b), powers, problem, rng), a, b


def lived(found: History, a: torch.Tensor, b: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The inputs that each call of a history finds, which change as its touches say."""
    seen = []
    for call, number in enumerate(found.order):
        for touch in range(call * found.each, (call + 1) * found.each):
            matrix = b if found.second[touch] else a
            value = torch.from_numpy(found.bits[touch : touch + 1].view(np.float16).copy())[0]
            matrix[int(found.number[touch]), int(found.row[touch]), int(found.column[touch])] = value
        seen.append((a[number].clone(), b[number].clone()))
    return seen


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.layout)
@pytest.mark.parametrize("sets", [1, 2, 5, 40, 400])
def test_touches_change_what_they_say_and_nothing_else(problem: Problem, sets: int) -> None:
    for seed in range(8):
        found, a, b = drawn(problem, sets, seed)
        before, applied = (a.clone(), b.clone()), (a.clone(), b.clone())
        found.apply(*applied)
        seen = lived(found, a, b)
        for left, right in zip((a, b), applied):
            assert torch.equal(left, right), "to live through it is to apply it"
        found.apply(a, b)
        assert torch.equal(a, applied[0]) and torch.equal(b, applied[1]), "however often"
        differ = [(left != right).flatten(1).sum(1) for left, right in zip(before, (a, b))]
        assert all(torch.equal(left.abs(), right.abs()) for left, right in zip(before, (a, b)))
        assert (differ[0] + differ[1]).tolist() == np.bincount(found.number[found.changes], minlength=sets).tolist()
        places = {number: place for place, number in enumerate(found.order)}
        for touch in np.flatnonzero(found.changes):
            number, call = int(found.number[touch]), touch // found.each
            assert (places[number] < call) == found.over[touch]
            old = before[int(found.second[touch])][number]
            used = seen[places[number]][int(found.second[touch])]
            assert torch.equal(used, old) == found.over[touch], "a call that was over used the old value"


def test_any_call_may_be_the_one_whose_set_is_touched_now_or_later() -> None:
    ahead, behind = [], []
    for seed in range(30):
        found, _, _ = drawn(PROBLEMS[0], 200, seed)
        place = np.argsort(found.order)[found.number]
        distance = place - np.arange(200)
        assert ((distance < 0) == found.over).all()
        ahead += distance[(distance >= 0) & found.changes].tolist()
        behind += (-1 - distance[(distance < 0) & found.changes]).tolist()
    for distances in (ahead, behind):
        assert distances.count(0) > 0.3 * len(distances) and max(distances) > 100
    assert len(behind) > 0.1 * (len(ahead) + len(behind))


def test_touches_that_change_nothing_cannot_be_told_from_the_others() -> None:
    """Not by their place, their value or how often they come."""
    found = [drawn(PROBLEMS[0], 100, seed)[0] for seed in range(40)]
    changes, second = (np.concatenate([getattr(one, name) for one in found]) for name in ("changes", "second"))
    values = np.concatenate([one.bits.view(np.float16).astype(float) for one in found])
    assert len(values) == 4000 and 0.2 < changes.mean() < 0.7
    for kind in (changes, ~changes):
        assert 0.45 < second[kind].mean() < 0.55 and 0.45 < (values[kind] > 0).mean() < 0.55
    sizes = [np.median(np.abs(values[kind])) for kind in (changes, ~changes)]
    assert 0.8 < sizes[0] / sizes[1] < 1.25


def test_the_element_weighs_in_c_whatever_its_scale() -> None:
    problem = Problem(64, 64, 64, "tn")
    weights = []
    for seed in range(20):
        found, a, b = drawn(problem, 50, seed)
        assert found.each == 1
        for call in range(50):
            matrices, where = (a, b), (int(found.number[call]), int(found.row[call]), int(found.column[call]))
            second = bool(found.second[call])
            other = matrices[not second][where[0], :, where[2]].float()
            weights.append(float(matrices[second][where].float().abs() * other.norm() / 8))
    assert min(weights) > 0.3 and np.median(weights) > 1.2  # |x| of the largest of eight normals


def test_baseline_and_candidate_come_to_the_same(context) -> None:
    """On buffers at other addresses, and where the baseline's B is stored the other way round."""
    arena, side = context.arena, context.baseline
    window = slice(0, arena.buffers.sets)
    for name in ("cublas-tn", "cublas-nn"):
        for _ in range(5):
            context.prepare(window, name, 0)
            found = context.history(window)
            Candidate(arena).replay(found)
            side.run(name, found)
            found.apply(*arena.inputs)
            assert torch.equal(arena.c, side.c) and arena.inputs_intact()
            context.check_changes(found)


def test_the_baseline_pays_for_its_touches(context) -> None:
    """It has the same, before the same calls."""
    seen = []

    class Calls(FakeCalls):
        def run(self, order, touches):
            seen.append((list(order), touches["value"].tolist()))
            return super().run(order, touches)

    class Vendor(FakeVendor):
        def calls(self, name, problem, sets):
            return Calls(self, super().calls(name, problem, sets).sets)

    context.baseline.vendor = Vendor()
    window = slice(0, 3)
    context.prepare(window, "cublas-tn", 0)
    found = context.history(window)
    context.baseline.run("cublas-tn", found)
    assert seen == [(found.order, context.arena.touches(found)["value"].tolist())]


def test_a_touch_is_as_history_h_has_it() -> None:
    assert history.TOUCH.itemsize == 16 and [history.TOUCH.fields[name][1] for name in ("where", "value")] == [0, 8]
