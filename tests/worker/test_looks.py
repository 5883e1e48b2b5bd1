"""Whatever the noise and wherever timing stops, an interval covers what it says."""

import runpy
from math import comb
from pathlib import Path

import numpy as np
import pytest

from cudal2.records import STRICT
from cudal2.worker import looks

COVERAGE = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "worker" / "coverage.py"))
CONFIGS, LAWS, RUNS = COVERAGE["configs"](), COVERAGE["LAWS"], 400
RULES = [
    (7, 25, 0.95),
    (5, 25, 0.95),
    (21, 75, 0.95),
    (9, 21, 0.95),
    (3, 7, 0.7),
    (4, 8, 0.7),
    (1, 4, 0.5),
    (8, 7, 0.9),
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["default", "eval worker=quick"])
def test_a_strict_interval_covers_at_least_what_it_says(name, law) -> None:
    config, _ = CONFIGS[name]
    held, faster, _ = COVERAGE["simulate"](COVERAGE["now"], config, LAWS[law], 0.015, RUNS)
    assert config.confidence == STRICT
    assert held >= 0.93 and faster <= 0.05


@pytest.mark.parametrize("law", LAWS)
def test_a_quick_interval_says_less_and_keeps_it(law) -> None:
    config, _ = CONFIGS["quick"]
    held, _, pairs = COVERAGE["simulate"](COVERAGE["now"], config, LAWS[law], 0.015, RUNS)
    assert config.confidence - 0.05 <= held and config.confidence < STRICT
    assert pairs <= 1.1 * COVERAGE["simulate"](COVERAGE["before"], config, LAWS[law], 0.015, RUNS)[2]


def test_one_look_misses_as_a_sign_test_does() -> None:
    for n, k in [(3, 1), (6, 1), (7, 2), (25, 8)]:
        assert looks.missing([(n, k)]) == pytest.approx(2 * sum(comb(n, s) for s in range(k)) / 2**n)


def test_several_looks_miss_as_often_as_coins_do() -> None:
    bands, runs = [(7, 1), (11, 2), (17, 4), (25, 7)], 40_000
    heads = np.random.default_rng(0).integers(2, size=(runs, 25)).cumsum(axis=1)
    missed = np.any([(heads[:, n - 1] < k) | (heads[:, n - 1] > n - k) for n, k in bands], axis=0)
    assert looks.missing(bands) == pytest.approx(missed.mean(), abs=0.004)
    assert looks.missing(bands) > max(looks.missing([band]) for band in bands)


@pytest.mark.parametrize("rule", RULES)
def test_all_looks_together_miss_no_oftener_than_stated(rule) -> None:
    """Wherever the clock ends it, the looks before included."""
    least, most, confidence = rule
    bands = looks.bands(*rule)
    assert [n for n, _ in bands] == looks.counts(least, most)[:-1]
    for n in range(least, max(least, most) + 1):
        k, stated = looks.last(n, *rule)
        assert 1 <= k <= max(1, n // 2) and stated <= confidence
        before = [band for band in bands if band[0] < n]
        assert looks.missing([*before, (n, k)]) <= 1 - stated + 1e-12


def test_what_few_pairs_cannot_say_is_not_said() -> None:
    assert [looks.last(n, n, n, 0.95)[1] for n in (1, 2, 3, 5)] == [0, 0.5, 0.75, 0.9375]
    assert looks.last(6, 6, 6, 0.95)[1] == 0.95
    assert looks.bands(3, 7, 0.95)[0] == (3, 0)  # no interval of three pairs is good enough to stop at
