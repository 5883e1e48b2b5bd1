"""What each round added, by a count of our own."""

import math
import random

import pytest

from cudal2.problem import Problem
from cudal2.search.proposer import Trial
from cudal2.search.rounds import rounds

SHAPES = [Problem(64 * size, 64, 64) for size in range(1, 7)]


def trials(rng: random.Random) -> dict[Problem, list[Trial]]:
    """Of some shapes some rounds are missing, and some kernels are wrong."""
    return {
        shape: [
            Trial("", generation, index, f"{generation} {index}", rng.choice([0.0, rng.uniform(0.5, 2)]))
            for generation in range(4)
            if rng.random() < 0.8
            for index in range(3)
        ]
        for shape in SHAPES
    }


@pytest.mark.parametrize("seed", range(20))
def test_each_round_is_compared_with_all_before_it(seed):
    some = trials(random.Random(seed))
    for found in rounds(some):
        before, after, asked = {}, {}, 0
        for shape, own in some.items():
            if any(trial.generation == found.number - 1 for trial in own):
                asked += 1
                before[shape] = max((t.low for t in own if t.generation < found.number - 1), default=0.0)
                after[shape] = max((t.low for t in own if t.generation < found.number), default=0.0)
        had = [shape for shape in before if before[shape]]
        assert found.judged == asked and found.had == len(had)
        assert found.faster == sum(after[shape] > before[shape] for shape in had)
        assert found.first == sum(after[shape] > 0 for shape in before if not before[shape])
        product = math.prod(after[shape] / before[shape] for shape in had)
        assert found.gain == pytest.approx(product ** (1 / max(len(had), 1))) and found.gain >= 1
        said = str(found)
        assert ("%" in said) == bool(had), "nothing is faster where no kernel was before"
        assert f"{found.faster} of {len(had)}" in said or not had
        assert f"{found.first} of {asked - len(had)}" in said or asked == len(had)


def test_without_trials_there_are_no_rounds():
    assert rounds({}) == rounds({SHAPES[0]: []}) == []
