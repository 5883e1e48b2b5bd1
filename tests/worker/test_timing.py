"""Whatever the noise and wherever timing stops, an interval covers what it says."""

import math
import runpy
from math import comb
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cudal2.config import BenchConfig, WorkerConfig, load
from cudal2.records import STRICT, HarnessFault
from cudal2.worker import timing
from cudal2.worker.timing import calls_for, speedup

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
        assert timing.miss_probability([(n, k)]) == pytest.approx(2 * sum(comb(n, s) for s in range(k)) / 2**n)


def test_several_looks_miss_as_often_as_coins_do() -> None:
    bands, runs = [(7, 1), (11, 2), (17, 4), (25, 7)], 40_000
    heads = np.random.default_rng(0).integers(2, size=(runs, 25)).cumsum(axis=1)
    missed = np.any([(heads[:, n - 1] < k) | (heads[:, n - 1] > n - k) for n, k in bands], axis=0)
    assert timing.miss_probability(bands) == pytest.approx(missed.mean(), abs=0.004)
    assert timing.miss_probability(bands) > max(timing.miss_probability([band]) for band in bands)


@pytest.mark.parametrize("rule", RULES)
def test_all_looks_together_miss_no_oftener_than_stated(rule) -> None:
    """Wherever the clock ends it, the looks before included."""
    least, most, confidence = rule
    bands = timing.look_bands(*rule)
    assert [n for n, _ in bands] == timing.look_counts(least, most)[:-1]
    for n in range(least, max(least, most) + 1):
        k, stated = timing.final_look(n, *rule)
        assert 1 <= k <= max(1, n // 2) and stated <= confidence
        before = [band for band in bands if band[0] < n]
        assert timing.miss_probability([*before, (n, k)]) <= 1 - stated + 1e-12


def test_what_few_pairs_cannot_say_is_not_said() -> None:
    assert [timing.final_look(n, n, n, 0.95)[1] for n in (1, 2, 3, 5)] == [0, 0.5, 0.75, 0.9375]
    assert timing.final_look(6, 6, 6, 0.95)[1] == 0.95
    assert timing.look_bands(3, 7, 0.95)[0] == (3, 0)  # no interval of three pairs is good enough to stop at


QUIET = WorkerConfig(timing_seconds=math.inf)


def test_an_interval_goes_from_one_ratio_to_another() -> None:
    baseline = [1.0, 2.0, 3.0, 4.0, 5.0]
    figures = [speedup([1.0] * 5, baseline, k) for k in (1, 2)]
    assert [figure.median for figure in figures] == pytest.approx([3, 3])
    assert [(figure.low, figure.high) for figure in figures] == [pytest.approx((1, 5)), pytest.approx((2, 4))]


def test_timing_stops_at_a_look_at_a_narrow_interval_and_nowhere_else() -> None:
    pairs = [1.0] * 30, [1.1] * 30
    stops = [n for n in range(31) if timing.enough(pairs[0][:n], pairs[1][:n], QUIET, 0.0)]
    first, *_ = timing.look_counts(QUIET.min_pairs, QUIET.max_pairs)
    assert set(stops) == {*timing.look_counts(QUIET.min_pairs, QUIET.max_pairs), *range(QUIET.max_pairs, 31)}
    noisy = [1.0, 1.2] * 15
    assert not any(timing.enough(noisy[:n], pairs[1][:n], QUIET, 0.0) for n in range(QUIET.max_pairs))
    hurried = msgspec.structs.replace(QUIET, timing_seconds=0)
    assert [timing.enough(noisy[:n], pairs[1][:n], hurried, 0.0) for n in (first - 1, first)] == [False, True]


def test_a_record_states_the_confidence_of_its_interval() -> None:
    quick = load("bench", ["worker=quick"], BenchConfig).worker
    stated = [
        timing.summary([1.0] * n, [1.1] * n, "base", "device", 1, config).confidence
        for n, config in [
            (7, QUIET),
            (25, QUIET),
            (3, quick),
            (7, quick),
            (3, msgspec.structs.replace(quick, confidence=0.95)),
        ]
    ]
    assert stated == pytest.approx([0.95, 0.95, 0.7, 0.7, 0.75])


def test_a_clock_that_stands_still_is_a_fault() -> None:
    with pytest.raises(HarnessFault, match="no time"):
        timing.summary([0.0] * 7, [1.0] * 7, "base", "device", 1, QUIET)


def test_one_outlier_moves_nothing() -> None:
    baseline = [1.0] * 15
    assert speedup([1.0] * 14 + [50.0], baseline).median == 1.0


def test_swapping_the_sides_inverts_the_figure() -> None:
    rng = np.random.default_rng(1)
    one, other = list(rng.lognormal(0, 0.1, 11)), list(rng.lognormal(0.2, 0.1, 11))
    assert speedup(one, other).median == pytest.approx(1 / speedup(other, one).median)


@pytest.mark.parametrize("candidate, baseline", [([], []), ([1.0], [1.0, 2.0])])
def test_what_is_no_pair_is_refused(candidate, baseline) -> None:
    with pytest.raises(ValueError):
        speedup(candidate, baseline)


def test_a_batch_is_long_enough_and_within_the_slots() -> None:
    assert calls_for(1e-6, 10e-3, 4096) == 4096
    assert calls_for(1e-3, 10e-3, 4096) == 10
    assert calls_for(10.0, 10e-3, 4096) == 1
    assert calls_for(0.0, 10e-3, 50) == 50


def test_derived_timings_follow_the_baselines_own_ratios() -> None:
    paired = timing.summary([1e-6] * 7, [2e-6] * 7, "base", "device", 1, QUIET)
    seconds = {"slow": 6e-6, "base": 3e-6, "tie": 6e-6, "slower": 9e-6}
    others = timing.derived(paired, seconds, {name: [each] * 3 for name, each in seconds.items()})
    assert [other.baseline for other in others] == ["slow", "tie", "slower"]
    for other in others:
        ratio = seconds[other.baseline] / seconds["base"]
        assert other.speedup / paired.speedup == pytest.approx(ratio) and not other.paired
        assert other.low <= other.speedup <= other.high and other.candidate_us == paired.candidate_us


def test_a_derived_interval_is_wider_by_that_of_the_ratio() -> None:
    paired = timing.summary([1e-6] * 7, [1.9e-6, 2e-6, 2.1e-6] * 2 + [2e-6], "base", "device", 1, QUIET)
    rounds = {"base": [3e-6, 3.1e-6, 2.9e-6], "other": [6.3e-6, 5.9e-6, 6e-6], "guess": [9e-6]}
    other, guess, bare = timing.derived(paired, {"base": 3e-6, "other": 6e-6, "guess": 9e-6, "bare": 12e-6}, rounds)
    assert other.low == pytest.approx(paired.low * 5.9 / 3.1) and other.high == pytest.approx(paired.high * 6.3 / 3)
    assert other.confidence == paired.confidence > 0
    for one, ratio in ((guess, 3), (bare, 4)):  # of which nothing is known but the figure
        assert one.speedup == pytest.approx(paired.speedup * ratio) and one.confidence == 0.0
        assert (one.low, one.high) == (pytest.approx(paired.low * ratio), pytest.approx(paired.high * ratio))


def test_derived_intervals_hold_what_they_say() -> None:
    """The true ratio of two baselines, measured in noisy rounds, and a noisy paired figure: in at least 93% of tries
    (95% of the paired figure's, less what the most and the least of seven rounds miss) the interval holds the truth."""
    rng, held, tries = np.random.default_rng(5), 0, 2000
    config = WorkerConfig(min_pairs=7, max_pairs=7, precision=0.0)
    for _ in range(tries):
        pairs = rng.lognormal(0, 0.03, (2, 7))
        paired = timing.summary(list(1e-6 * pairs[0]), list(2e-6 * pairs[1]), "base", "device", 1, config)
        rounds = {"base": list(3e-6 * rng.lognormal(0, 0.03, 7)), "other": list(4.5e-6 * rng.lognormal(0, 0.03, 7))}
        seconds = {name: float(np.median(each)) for name, each in rounds.items()}
        (other,) = timing.derived(paired, seconds, rounds)
        held += other.low <= 3.0 <= other.high
    assert held >= 0.93 * tries
