"""What a window's inputs go through: by itself, and as candidate and baseline live it."""

import numpy as np
import pytest
import torch
from fake_gpu import Candidate, FakeCalls, FakeVendor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker import inputs
from cudal2.worker.gpu import history
from cudal2.worker.gpu.history import History, draw

PROBLEMS = [Problem(16, 8, 24, "tn"), Problem(8, 24, 16, "nn"), Problem(3, 24, 16, "nn", "f32", "bf16", "bias")]


def drawn(problem: Problem, sets: int, seed: int = 0) -> tuple[History, list[torch.Tensor]]:
    given = [torch.empty(sets, *one.shape, dtype=inputs.element(problem)) for one in operators.inputs(problem)]
    rng = np.random.default_rng(seed)
    powers = inputs.fill_uneven(inputs.generator(), given, problem)
    return draw(rng.permutation(sets).tolist(), given, powers, problem, rng), given


def lived(found: History, given: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The inputs that each call of a history finds, which change as its touches say."""
    seen = []
    for call, number in enumerate(found.order):
        for touch in range(call * found.each, (call + 1) * found.each):
            operand = given[found.operand[touch]]
            value = torch.from_numpy(found.bits[touch : touch + 1].view(np.int16).copy()).view(operand.dtype)[0]
            flat = int(found.row[touch]) * operand.shape[-1] + int(found.column[touch])
            operand.view(len(operand), -1)[int(found.number[touch]), flat] = value
        seen.append([operand[number].clone() for operand in given])
    return seen


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.name)
@pytest.mark.parametrize("sets", [1, 2, 5, 40, 400])
def test_touches_change_what_they_say_and_nothing_else(problem: Problem, sets: int) -> None:
    for seed in range(8):
        found, given = drawn(problem, sets, seed)
        before, applied = ([operand.clone() for operand in given] for _ in range(2))
        found.apply(applied)
        seen = lived(found, given)
        assert all(map(torch.equal, given, applied)), "to live through it is to apply it"
        found.apply(given)
        assert all(map(torch.equal, given, applied)), "however often"
        with found.as_called(given):
            for number, own in zip(found.order, seen):
                assert all(torch.equal(operand[number], one) for operand, one in zip(given, own))
        assert all(map(torch.equal, given, applied))
        differ = [(left != right).flatten(1).sum(1) for left, right in zip(before, given)]
        assert all(torch.equal(left.abs(), right.abs()) for left, right in zip(before, given))
        assert sum(differ).tolist() == np.bincount(found.number[found.changes], minlength=sets).tolist()
        places = {number: place for place, number in enumerate(found.order)}
        for touch in np.flatnonzero(found.changes):
            number, call = int(found.number[touch]), touch // found.each
            assert (places[number] < call) == found.over[touch]
            old = before[found.operand[touch]][number]
            used = seen[places[number]][found.operand[touch]]
            assert torch.equal(used, old) == found.over[touch], "a call that was over used the old value"


def test_any_call_may_be_the_one_whose_set_is_touched_now_or_later() -> None:
    ahead, behind = [], []
    for seed in range(30):
        found, _ = drawn(PROBLEMS[0], 200, seed)
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
    found = [drawn(PROBLEMS[0], 100, seed)[0] for seed in range(100)]
    changes, operand = (np.concatenate([getattr(one, name) for one in found]) for name in ("changes", "operand"))
    values = np.concatenate([one.bits.view(np.float16).astype(float) for one in found])
    assert len(values) == 10_000 and 0.2 < changes.mean() < 0.7
    for kind in (changes, ~changes):
        assert 0.45 < operand[kind].mean() < 0.55 and 0.45 < (values[kind] > 0).mean() < 0.55
    sizes = [np.median(np.abs(values[kind])) for kind in (changes, ~changes)]
    assert 0.8 < sizes[0] / sizes[1] < 1.25


def test_the_element_weighs_in_c_whatever_its_scale() -> None:
    problem = Problem(64, 64, 64, "tn")
    weights = []
    for seed in range(20):
        found, matrices = drawn(problem, 50, seed)
        assert found.each == 1
        for call in range(50):
            where = int(found.number[call]), int(found.row[call]), int(found.column[call])
            second = int(found.operand[call])
            other = matrices[1 - second][where[0], :, where[2]].float()
            weights.append(float(matrices[second][where].float().abs() * other.norm() / 8))
    assert min(weights) > 0.15 and np.median(weights) > 1.2  # |x| of the largest of eight normals


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
            found.apply(arena.inputs)
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
            return Calls(self, super().calls(name, problem, sets).sets, problem)

    context.baseline.vendor = Vendor()
    window = slice(0, 3)
    context.prepare(window, "cublas-tn", 0)
    found = context.history(window)
    context.baseline.run("cublas-tn", found)
    assert seen == [(found.order, context.arena.touches(found)["value"].tolist())]


def test_a_touch_is_as_history_h_has_it() -> None:
    assert history.TOUCH.itemsize == 16 and [history.TOUCH.fields[name][1] for name in ("where", "value")] == [0, 8]


def test_a_bias_is_touched_as_often_as_a_matrix() -> None:
    found = [drawn(PROBLEMS[2], 100, seed)[0] for seed in range(20)]
    operands, changes = (np.concatenate([getattr(one, name) for one in found]) for name in ("operand", "changes"))
    for which in (operands, operands[changes]):
        shares = np.bincount(which, minlength=3) / len(which)
        assert (shares > 0.25).all() and (shares < 0.42).all()


def test_a_window_of_few_calls_changes_every_operand_as_often() -> None:
    """Lest what is remembered of one operand goes unseen in all of the few windows that a slow kernel has."""
    for seed in range(20):
        found, given = drawn(PROBLEMS[2], 12, seed)
        for kind in (found.over, ~found.over):
            often = np.bincount(found.operand[found.changes & kind], minlength=len(given))
            assert often.max() - often.min() <= 1
        assert found.changes.sum() == 12
