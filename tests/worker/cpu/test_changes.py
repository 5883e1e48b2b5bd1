"""What an honest call may have left whose inputs changed while it ran, and what none can."""

import pytest
import torch

from cudal2.problem import Problem
from cudal2.worker import inputs, verify
from cudal2.worker.cpu import changes

KINDS = {
    "one of A": [(0, 3, 17)],
    "one of B": [(1, 5, 17)],
    "the same twice": [(0, 3, 17), (0, 3, 17)],
    "a row of A": [(0, 3, 17), (0, 3, 2)],
    "two that multiply one another": [(0, 3, 17), (1, 5, 17)],
    "two whose lines cross": [(0, 3, 17), (1, 5, 9)],
    "four": [(0, 3, 17), (1, 5, 9), (1, 5, 17), (0, 11, 9)],
}


PROBLEMS = [Problem(24, 16, 40), Problem(24, 16, 4096), Problem(64, 40, 96, "nn")]
PROBLEMS += [Problem(24, 16, 40, epilogue="bias"), Problem(24, 16, 96, "nn", dtype="bf16", epilogue="bias_gelu")]


@pytest.fixture(params=PROBLEMS, ids=lambda one: one.name)
def problem(request) -> Problem:
    return request.param


@pytest.fixture
def call(problem):
    """The operands after the change."""
    return inputs.uneven_normal(inputs.generator(), problem)


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
    expected = changes.nearest(result, product(problem, call), call, places, problem)
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
