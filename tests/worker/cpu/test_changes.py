"""What changes while a batch runs, and what that says about who worked ahead; what an honest call may have left whose
inputs changed while it ran, and what none can."""

import msgspec
import pytest
import torch

from cudal2.problem import Problem
from cudal2.worker import inputs, stale, verify
from cudal2.worker.cpu import states
from cudal2.worker.cpu.arena import GUARDED, Arena
from cudal2.worker.cpu.changes import MOST, Perturbation

KINDS = {
    "one of A": [(0, 3, 17)],
    "one of B": [(1, 5, 17)],
    "the same twice": [(0, 3, 17), (0, 3, 17)],
    "a row of A": [(0, 3, 17), (0, 3, 2)],
    "two that multiply one another": [(0, 3, 17), (1, 5, 17)],
    "two whose lines cross": [(0, 3, 17), (1, 5, 9)],
    "four": [(0, 3, 17), (1, 5, 9), (1, 5, 17), (0, 11, 9)],
    "so many that not every set of them can be tried": [(n % 2, n, 3 * n) for n in range(12)],
}


PROBLEMS = [Problem(24, 16, 40), Problem(24, 16, 4096), Problem(64, 40, 96, "nn")]
PROBLEMS += [Problem(24, 16, 40, epilogue="bias"), Problem(24, 16, 96, "nn", dtype="bf16", epilogue="bias_gelu")]


@pytest.fixture(params=PROBLEMS, ids=lambda one: one.name)
def problem(request) -> Problem:
    return request.param


@pytest.fixture
def call(problem):
    """The operands after the change, the same in every run: where GELU gives 0 for a whole row, as it does for one draw
    in a hundred, no change of that row shows."""
    return inputs.uneven_normal(torch.Generator().manual_seed(len(problem.name)), problem)


def stored(problem: Problem, places):
    """The places of KINDS, whose B is [N,K]; a bias changes with B's column where there is one."""
    found = [place if not place[0] or problem.layout == "tn" else (1, place[2], place[1]) for place in places]
    more = [(2, 0, row) for second, row, _ in places if second] if problem.epilogue != "none" else []
    return found + more


def flipped(call, places):
    operands = [tensor.clone() for tensor in call]
    for which, row, column in set(places):
        operands[which].view(-1, operands[which].shape[-1])[row, column] *= -1
    return operands


def product(problem: Problem, call) -> torch.Tensor:
    return verify.reference(call, problem).to(inputs.element(problem))


def judged(problem: Problem, call, places, result: torch.Tensor):
    expected = states.nearest(result, product(problem, call), call, places, problem)
    return verify.check_timed(result[None], expected[None], problem, 1)


@pytest.mark.parametrize("name", KINDS)
def test_any_mixture_of_old_and_new_passes(problem, call, name) -> None:
    places = stored(problem, KINDS[name])
    generator = torch.Generator().manual_seed(3)
    states = [product(problem, flipped(call, places[:count])) for count in range(len(places) + 1)]
    states += [product(problem, flipped(call, places[count:])) for count in range(len(places) + 1)]
    for _ in range(5):
        chosen = torch.randint(len(states), states[0].shape, generator=generator)
        mixed = torch.stack(states).gather(0, chosen[None])[0]
        assert judged(problem, call, places, mixed) is None
    assert all(judged(problem, call, places, state) is None for state in states)


@pytest.mark.parametrize("name", KINDS)
def test_what_no_state_of_the_inputs_gives_does_not(problem, call, name) -> None:
    places, right = stored(problem, KINDS[name]), product(problem, call)
    unit = right.float().std()
    for row, column in ((3, 1), (1, 5), (0, 0), (3, 5)):
        wrong = right.clone()
        wrong[row, column] += 3 * unit
        assert judged(problem, call, places, wrong) is not None
    gave_up = torch.zeros_like(right)
    inputs.poison(gave_up[2:])
    assert judged(problem, call, places, gave_up) is not None
    assert judged(problem, call, places, torch.full_like(right, torch.nan)) is not None


def test_another_element_s_change_is_not_excused(problem, call) -> None:
    places = stored(problem, [(0, 3, 17)])
    for other in ([(0, 4, 17)], [(1, 5, 17)], [(0, 3, 18)]):
        assert judged(problem, call, places, product(problem, flipped(call, stored(problem, other)))) is not None


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_who_used_the_value_that_was_there_before_is_told_by_the_line_that_it_moves(problem, call, accumulate) -> None:
    """Where sums may be kept in fp16, too, whose bounds for all of C are wider than what a change moves."""
    if accumulate not in problem.type.accumulators:
        pytest.skip("not in this type")
    asked = msgspec.structs.replace(problem, accumulate=accumulate)
    right = product(problem, call)
    for places in map(KINDS.__getitem__, ("one of A", "one of B")):
        (place, *_) = stored(problem, places)
        given = [tensor.clone() for tensor in call]
        given[place[0]].view(-1, given[place[0]].shape[-1])[place[1:]] *= 64
        now, before = product(problem, given), product(problem, flipped(given, [place]))
        for result, found in ((now, False), (before, True), (right, False)):
            line = states.line(result, now if result is not right else right, given, place, problem)
            assert bool(stale.check(*line, asked, 1)) == found


FIRST, CALLS = GUARDED + 3, 80


@pytest.fixture(
    params=[Problem(16, 8, 24), Problem(8, 40, 64, "nn"), Problem(7, 40, 64, dtype="bf16", epilogue="bias")],
    ids=lambda problem: problem.name,
)
def arena(request):
    arena = Arena(request.param)
    pool = torch.empty(1 << 14, dtype=inputs.element(arena.problem))
    inputs.fill_normal(inputs.generator(), pool)
    inputs.keep_from_zero(pool, arena.problem.type)
    arena.fill_inputs(GUARDED, arena.count - GUARDED, pool, inputs.uneven_powers(arena.problem))
    for part in arena.outputs(FIRST, CALLS):
        inputs.poison(part)
    yield arena
    arena.close()


def changed_inputs(arena: Arena, perturbation: Perturbation) -> dict[int, int]:
    """How many input elements of each slot differ after the perturbation, and the honest end of the batch."""
    slots = range(GUARDED, FIRST + CALLS + 20)
    before = {slot: [tensor.clone() for tensor in arena.given(slot)] for slot in slots}
    perturbation()
    pairs = {slot: list(zip(arena.given(slot), tensors)) for slot, tensors in before.items()}
    assert all((now.abs() == old.abs()).all() for each in pairs.values() for now, old in each), "nobody sees which"
    found = {slot: sum(int((now != old).sum()) for now, old in each) for slot, each in pairs.items()}
    return {slot: count for slot, count in found.items() if count}


def finish(arena: Arena, calls: int) -> None:
    for slot in range(FIRST, FIRST + calls):
        arena.c(slot).fill_(1)


def test_poison_is_what_outputs_are_poisoned_with(arena: Arena) -> None:
    assert arena.c(FIRST).view(torch.int16)[0, 0] == arena.problem.type.nan


def conclude(arena: Arena, perturbation: Perturbation, calls: int = CALLS) -> None:
    finish(arena, calls)
    perturbation.conclude()


@pytest.mark.parametrize("done", [0, 1, 37])
def test_one_element_changes_in_each_of_the_calls_that_follow(arena: Arena, done: int) -> None:
    """And in the one that seems to run, unless it is the first: whether it has begun is told by the one before."""
    finish(arena, done)
    perturbation = Perturbation(arena, FIRST, CALLS)
    running = FIRST + done
    found = changed_inputs(arena, perturbation)
    assert set(found.values()) == {1} and len(found) <= 1 + 2 * MOST
    conclude(arena, perturbation)
    assert list(perturbation.changed) == sorted(found)
    next_ones = list(range(running if done else running + 1, running + 1 + MOST))
    changed = list(perturbation.changed)
    assert changed[: len(next_ones)] == next_ones and changed[-1] > running + MOST
    assert list(perturbation.unsure) == ([running] if done else []) and perturbation.early is None


@pytest.mark.parametrize("done", [CALLS - 1, CALLS])
def test_nothing_beyond_the_batch_changes(arena: Arena, done: int) -> None:
    finish(arena, done)
    perturbation = Perturbation(arena, FIRST, CALLS)
    found = list(changed_inputs(arena, perturbation))
    conclude(arena, perturbation)
    assert found == list(range(FIRST + done, FIRST + CALLS)) == list(perturbation.changed)


def test_a_batch_that_is_over_at_the_last_slot_is_looked_at_no_further(arena: Arena) -> None:
    """Behind it lies no memory."""
    first = arena.count - 20
    for part in arena.outputs(first, 20):
        part.fill_(1)
    perturbation = Perturbation(arena, first, 20)
    perturbation()
    perturbation.conclude()
    assert not perturbation.changed and perturbation.early is None


def test_the_baseline_is_looked_at_as_long_and_left_as_it_is(arena: Arena) -> None:
    perturbation = Perturbation(arena, FIRST, CALLS, change=False)
    assert not changed_inputs(arena, perturbation) and not perturbation.changed


def test_an_output_written_before_its_call_gives_its_author_away(arena: Arena) -> None:
    finish(arena, 5)
    arena.c(FIRST + 7).fill_(1)  # call 5 is not over
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation._running = lambda: 5
    perturbation()
    conclude(arena, perturbation)
    assert perturbation.early == FIRST + 7


@pytest.mark.parametrize("last", [12, CALLS - 1], ids=["a-group", "the-batch"])
def test_what_only_looks_as_if_it_were_over_gives_its_author_away(arena: Arena, last: int) -> None:
    """Outputs of calls 5 to `last` hold something, but not their results: their calls were to be held for over."""
    finish(arena, 5)
    for slot in range(FIRST + 5, FIRST + last + 1):
        arena.c(slot).fill_(2)
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation()
    conclude(arena, perturbation)
    assert perturbation.early in range(FIRST + 6, FIRST + last + 1)


def test_a_call_after_one_that_has_only_begun_to_write_is_held_to_its_new_input(arena: Arena) -> None:
    finish(arena, 5)
    arena.c(FIRST + 5).fill_(2)  # of call 5 something is there, but not what will be
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation()
    conclude(arena, perturbation)
    assert next(iter(perturbation.changed)) == FIRST + 6 and not perturbation.unsure and perturbation.early is None


@pytest.mark.parametrize("gap", [0, 3, 37])
def test_a_call_that_others_went_past_gives_its_author_away(arena: Arena, gap: int) -> None:
    """However far behind: the look itself may have stopped the thread that works on it."""
    finish(arena, 60)
    inputs.poison(arena.c(FIRST + gap))
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation._running = lambda: 60
    perturbation()
    conclude(arena, perturbation)
    assert perturbation.early is not None


def test_whoever_begins_with_the_last_call_is_seen(arena: Arena) -> None:
    """Half of a batch is done, the second."""
    for slot in range(FIRST + CALLS // 2, FIRST + CALLS):
        arena.c(slot).fill_(1)
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation()
    conclude(arena, perturbation)
    assert perturbation.early is not None


def test_a_call_that_may_have_begun_is_unsure(arena: Arena) -> None:
    """The batch goes on between the look and the change: here by two calls."""
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation._running = lambda: 5
    finish(arena, 7)
    perturbation()
    conclude(arena, perturbation)
    assert list(perturbation.unsure) == [FIRST + 5, FIRST + 6, FIRST + 7]
    assert (
        list(perturbation.changed)[: 1 + MOST] == list(range(FIRST + 5, FIRST + 6 + MOST))
        and perturbation.early is None
    )


def test_what_changed_in_an_unsure_call_is_named(arena: Arena) -> None:
    perturbation = Perturbation(arena, FIRST, CALLS)
    perturbation._running = lambda: 5
    before = {slot: [tensor.clone() for tensor in arena.given(slot)] for slot in range(FIRST, FIRST + CALLS)}
    finish(arena, 20)
    perturbation()
    conclude(arena, perturbation)
    assert len(perturbation.unsure) > MOST
    for slot, word in perturbation.unsure.items():
        matrix, row, column = arena.element(slot, word)
        now = arena.given(slot)[matrix]
        assert (before[slot][matrix] != now).nonzero().tolist() == [[row, column][-now.dim() :]]


def test_short_batches_change_little() -> None:
    arena = Arena(Problem(512, 512, 512))
    for part in arena.outputs(GUARDED, 10):
        inputs.poison(part)
    perturbation = Perturbation(arena, GUARDED, 10)
    perturbation()
    perturbation.conclude()
    assert len(perturbation.changed) == 2 and next(iter(perturbation.changed)) == GUARDED + 1
    perturbation = None  # its views
    arena.close()


@pytest.mark.parametrize(("done", "late"), [(0, False), (CALLS - 1, False), (CALLS, True)])
def test_whoever_looks_after_the_end_is_late(arena: Arena, done: int, late: bool) -> None:
    finish(arena, done)
    perturbation = Perturbation(arena, FIRST, CALLS)
    assert perturbation.late, "nobody has looked yet"
    perturbation()
    assert perturbation.late == late
