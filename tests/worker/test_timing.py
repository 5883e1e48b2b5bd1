import numpy as np
import pytest

from cudal2.worker.timing import calls_for, speedup


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered, rounds = np.random.default_rng(0), 0, 200
    for _ in range(rounds):
        drift = rng.lognormal(0, 0.3, 15)  # meets both sides of a pair alike
        candidate = drift * rng.lognormal(0, 0.02, 15)
        baseline = 1.25 * drift * rng.lognormal(0, 0.02, 15)
        figure = speedup(list(candidate), list(baseline))
        assert figure.low <= figure.median <= figure.high
        covered += figure.low <= 1.25 <= figure.high
    assert 0.88 * rounds <= covered <= rounds


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
