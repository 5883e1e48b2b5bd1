"""What a window's inputs go through, and what is kept of its outputs: by itself, and as the two sides live it."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_gpu import Candidate, FakeCalls, FakeVendor
from toolkit import needs_toolkit

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.target import targets
from cudal2.worker import inputs
from cudal2.worker.cuda import session
from cudal2.worker.cuda.compile import sass, toolchain
from cudal2.worker.gpu import history
from cudal2.worker.gpu.history import History, draw
from cudal2.worker.sandbox import jail

PROBLEMS = [Problem(16, 8, 24, "tn"), Problem(8, 24, 16, "nn"), Problem(3, 24, 16, "nn", "f32", "bf16", "bias")]


def drawn(problem: Problem, sets: int, seed: int = 0) -> tuple[History, list[torch.Tensor]]:
    given = [torch.empty(sets, *one.shape, dtype=inputs.element(problem)) for one in operators.inputs(problem)]
    rng = np.random.default_rng(seed)
    powers = inputs.fill_uneven(inputs.generator(), given, problem)
    return draw(rng.permutation(sets).tolist(), given, powers, problem, rng), given


def of_inputs(found: History, name: str) -> np.ndarray:
    return getattr(found, name)[~found.keeps]


def lived(found: History, given: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The inputs that each call of a history finds, which change as its touches say."""
    seen = []
    for call, number in enumerate(found.order):
        for touch in range(call * found.each, (call + 1) * found.each):
            if found.keeps[touch]:
                continue
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
        for number, own in zip(found.order, seen):
            assert all(torch.equal(operand[number], one) for operand, one in zip(given, own)), "what its call found"
        differ = [(left != right).flatten(1).sum(1) for left, right in zip(before, given)]
        assert all(torch.equal(left.abs(), right.abs()) for left, right in zip(before, given))
        assert sum(differ).tolist() == np.bincount(found.number[found.changes], minlength=sets).tolist()


def test_any_call_may_be_the_one_whose_set_is_touched_and_any_may_be_kept() -> None:
    ahead, kept = [], []
    for seed in range(30):
        found, _ = drawn(PROBLEMS[0], 200, seed)
        distance = np.argsort(found.order)[found.number] - np.arange(200)
        keeps = found.keeps
        assert (distance[keeps] == -1).all() and not found.changes[keeps].any(), "of the call just over"
        assert (distance[~keeps] >= 0).all()
        ahead += distance[found.changes].tolist()
        kept += (np.flatnonzero(keeps) - 1).tolist()
    assert ahead.count(0) > 0.3 * len(ahead) and max(ahead) > 100
    assert len(set(kept)) > 190 and max(kept) == 198 and 0.2 < len(kept) / 6000 < 0.3


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: one.name)
@pytest.mark.parametrize("sets", [1, 2, 5, 400])
def test_kept_elements_are_anywhere_in_c_each_under_a_mask_of_its_own(problem: Problem, sets: int) -> None:
    found = [drawn(problem, sets, seed)[0] for seed in range(40)]
    for one in found:
        assert one.keeps.sum() >= (sets - 1) / 8
        assert sets > 16 or set(one.number[one.keeps]) == set(one.order[:-1]), "of every call but the last"
    if sets > 2:
        for name, size in (("row", problem.m), ("column", problem.n)):
            assert {int(place) for one in found for place in getattr(one, name)[one.keeps]} == set(range(size))
    if sets == 400:
        masks = np.concatenate([one.bits[one.keeps] for one in found])
        assert len(np.unique(masks)) > 0.95 * len(masks), "drawn of all 65,536"
        assert all(0.45 < (masks >> bit & 1).mean() < 0.55 for bit in range(16))


def test_touches_that_change_nothing_cannot_be_told_from_the_others() -> None:
    """Not by their place, their value or how often they come."""
    found = [drawn(PROBLEMS[0], 100, seed)[0] for seed in range(100)]
    changes, operand, bits = (
        np.concatenate([of_inputs(one, name) for one in found]) for name in ("changes", "operand", "bits")
    )
    values = bits.view(np.float16).astype(float)
    assert 7000 < len(values) < 8000 and 0.2 < changes.mean() < 0.7
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
        for call in np.flatnonzero(~found.keeps):
            where = int(found.number[call]), int(found.row[call]), int(found.column[call])
            second = int(found.operand[call])
            other = matrices[1 - second][where[0], :, where[2]].float()
            weights.append(float(matrices[second][where].float().abs() * other.norm() / 8))
    assert min(weights) > 0.15 and np.median(weights) > 1.2  # |x| of the largest of eight normals


def test_baseline_and_candidate_come_to_the_same(context) -> None:
    """In the same memory, one after the other, and where the baseline's B is stored the other way round."""
    arena, side = context.arena, context.baseline
    window = slice(0, arena.buffers.sets)
    for layout in ("tn", "nn"):
        for _ in range(5):
            context.prepare(window, 0)
            found = context.history(window)
            side.lay(layout, window)
            side.run(f"cublas-{layout}", found)
            side.lay("tn", window)
            Candidate(arena).replay(found)
            found.apply(arena.inputs)
            assert torch.equal(arena.c, side.c) and arena.inputs_intact()
            context.check_due(found)
            context.check(window, 0)
            context.check_changes(found)


def test_a_history_can_be_undone(context) -> None:
    window = slice(0, context.arena.buffers.sets)
    for _ in range(5):
        context.prepare(window, 0)
        before = [operand.clone() for operand in context.arena.inputs]
        found = context.history(window)
        found.apply(context.arena.inputs)
        assert not all(map(torch.equal, before, context.arena.inputs))
        found.undo(context.arena.inputs)
        assert all(map(torch.equal, before, context.arena.inputs))


def test_what_is_kept_is_what_stood_there_when_the_call_was_over(context) -> None:
    """And leaves nothing behind: what was kept by one history is nothing to the next."""
    arena, window = context.arena, slice(0, context.arena.buffers.sets)
    for late in (0, 1, 0, 3):
        context.prepare(window, 0)
        found = context.history(window)
        Candidate(arena).replay(found)
        for touch in np.flatnonzero(found.keeps)[:late]:
            arena.c[int(found.number[touch]), int(found.row[touch]), int(found.column[touch])] += 1
        assert (arena.kept_late(found) > 0) == (late > 0)
        assert not arena.guard_finding() and not arena.workspace_finding(0)


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
    context.prepare(window, 0)
    found = context.history(window)
    context.baseline.run("cublas-tn", found)
    assert seen == [(found.order, context.arena.touches(found)["value"].tolist())]


def test_what_touches_leave_in_registers_is_idle(context) -> None:
    """A loop makes them in the same registers, and the last of each call says nothing."""
    found = context.history(slice(0, context.arena.buffers.sets))
    idle = context.arena.touches(found).reshape(len(found.order), found.each + 1)[:, -1]
    assert len(np.unique(idle)) == 1 and idle[0]["source"] == idle[0]["value"] == 0
    arena = context.arena
    head = arena.memory[arena.buffers.bytes // 2 - arena.buffers.log_words :]
    assert idle[0]["where"] == head.data_ptr() - arena.memory.data_ptr() and head[0] == 0, "as it is"
    Candidate(arena).replay(found)
    assert head[0] == 0, "and as it stays"


def test_the_touch_is_a_loop_for_every_target(tmp_path) -> None:
    needs_toolkit()
    text = (Path(session.__file__).parent / "programs" / "history.h").read_text()
    source, made = tmp_path / "ours.ptx", tmp_path / "ours.cubin"
    source.write_text(text.split('R"(')[1].split(')"')[0])
    for target in (one.name for one in targets().values() if one.kind == "cuda"):
        assembler = toolchain.find().nvcc.parent / "ptxas"
        subprocess.run([assembler, f"-arch={target}", source, "-o", made], check=True)
        with sass.listing(made.read_bytes(), jail.choose("auto"), 60) as lines:
            code = lines.read().decode().split(".text.touch:")[1].split("---- .text.")[0]
        operations = re.findall(r"^\s+/\*\w+\*/\s+(?:@!?U?P\d )?\s*(\w+)", code, re.MULTILINE)
        assert [operations.count(name) for name in ("LDG", "STG")] == [1, 1], "of a loop that is rolled up"
        assert operations.index("BRA") > operations.index("STG") > operations.index("LDG")


def test_a_touch_is_as_history_h_has_it() -> None:
    assert history.TOUCH.itemsize == 24
    assert [history.TOUCH.fields[name][1] for name in ("where", "source", "value")] == [0, 8, 16]


def test_a_bias_is_touched_as_often_as_a_matrix() -> None:
    found = [drawn(PROBLEMS[2], 100, seed)[0] for seed in range(20)]
    operands, changes = (np.concatenate([of_inputs(one, name) for one in found]) for name in ("operand", "changes"))
    for which in (operands, operands[changes]):
        shares = np.bincount(which, minlength=3) / len(which)
        assert (shares > 0.25).all() and (shares < 0.42).all()


def test_a_window_of_few_calls_changes_every_operand_as_often() -> None:
    """Lest what is remembered of one operand goes unseen in all of the few windows that a slow kernel has."""
    for seed in range(20):
        found, given = drawn(PROBLEMS[2], 12, seed)
        often = np.bincount(found.operand[found.changes], minlength=len(given))
        assert often.max() - often.min() <= 1 and found.changes.sum() >= 9
