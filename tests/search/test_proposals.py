"""What is proposed renders, whatever it descends from."""

import random

import pytest
from landscape import BEST, FAMILIES

from cudal2 import corpus
from cudal2.problem import parse
from cudal2.records import digest
from cudal2.search import proposals
from cudal2.search.proposals import Setting, Trial
from cudal2.target import find


@pytest.mark.parametrize("name", ["256_256_256_tn_f32", "128_256_64_nn_f32"])
def test_the_families_that_ship_can_be_searched(name):
    """Children of real settings render and differ from their parents."""
    problem, families = parse(name), corpus.families(find("cpu"))
    trials: list[Trial] = []
    for generation in range(4):
        rng = random.Random(generation)
        proposed = proposals.propose("evolve", problem, families, trials, [], 8, rng)
        assert len(proposed) == 8
        for index, (source, setting) in enumerate(proposed.items()):
            family = next(family for family in families if family.name == setting.family)
            assert source == corpus.render(family, setting.knobs, problem.layout)
            trials.append(Trial(setting, generation, index, digest(source), rng.random()))
    assert len({trial.source for trial in trials}) == 32


def test_settings_of_another_edition_of_a_family_are_no_parents():
    """A knob or a value that is gone must not reach the template."""
    old = Setting("good", dict(BEST) | {"accumulate": "f32", "style": "plain", "gone": 1})
    gone = Setting("good", dict(BEST) | {"accumulate": "f32", "style": "plain", "tile_m": 7})
    trials = [Trial(setting, 0, i, str(i), 1.0) for i, setting in enumerate((old, gone))]
    for seed in range(50):
        child = proposals._child(parse("64_64_64"), FAMILIES[:1], trials, random.Random(seed))
        assert child is None or proposals.allowed(parse("64_64_64"), FAMILIES[0], child.knobs)
