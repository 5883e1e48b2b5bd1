"""Races of edits: what an interval covers, what a poor edit costs, what a place in memory changes."""

import numpy as np
import pytest

from cudal2.config import EffortConfig, WorkerConfig
from cudal2.worker import timing

pytest.importorskip("nvmath", reason="nvmath-python is not installed")
from cudal2.worker.cuda.edit_pairs import Pair, Raced, race

WORKER = WorkerConfig()


class Device:
    """An edit of that speedup, pairs of that noise; where its place is even it seems `place` times as fast, else as
    much slower."""

    def __init__(self, seed: int, speedup: float, noise: float = 0.005, place: float = 1.0) -> None:
        self.rng, self.speedup, self.noise, self.place = np.random.default_rng(seed), speedup, noise, place
        self.asked: list[int] = []

    def take(self, arrangement: int, number: int) -> list[Pair]:
        self.asked += [arrangement] * number
        seems = self.speedup * self.place ** (-1 if arrangement % 2 else 1)
        return [(1e-5 / seems * float(np.exp(self.rng.normal(0, self.noise))), 1e-5) for _ in range(number)]

    @property
    def loads(self) -> int:
        return 1 + sum(one != other for one, other in zip(self.asked, self.asked[1:]))


def summary(raced: Raced) -> timing.Timing:
    return timing.summary(raced.edited, raced.parent, "unedited", "device", 1, raced.config)


@pytest.mark.parametrize("arrangements", [1, 2, 3])
@pytest.mark.parametrize("speedup", [0.97, 1.0, 1.03])
def test_the_interval_covers_what_it_says_whatever_a_race_stops_at(arrangements: int, speedup: float) -> None:
    effort, count, covered = EffortConfig(arrangements=arrangements, precision=0.004), 300, 0
    for seed in range(count):
        found = summary(race(Device(seed, speedup).take, effort, WORKER, 1.0))
        covered += found.low <= speedup <= found.high
    assert covered / count > effort.confidence - 3 * (0.25 * 0.75 / count) ** 0.5


def test_what_is_surely_beaten_costs_the_fewest_pairs_in_one_load() -> None:
    effort = EffortConfig()
    poor, good = Device(0, 0.95), Device(0, 1.05)
    lost, won = race(poor.take, effort, WORKER, 1.0), race(good.take, effort, WORKER, 1.0)
    assert lost.alone and len(poor.asked) == effort.min_pairs and poor.loads == 1
    assert not won.alone and good.loads <= effort.arrangements + 1
    assert summary(lost).high < 1.0 < summary(won).low


def test_places_cancel_and_what_one_is_worth_is_not_held_against_an_edit() -> None:
    device = Device(0, 1.03, noise=0.001, place=0.96)  # in the first arrangement it seems slower than its parent
    assert race(device.take, EffortConfig(), WORKER, 1.0).alone
    raced = race(device.take, EffortConfig(), WORKER, 1.0, aside=0.96)
    assert not raced.alone and summary(raced).speedup == pytest.approx(1.03, rel=0.002)


def test_who_is_no_rival_of_anybody_is_measured_in_all_arrangements() -> None:
    device, effort = Device(0, 0.8, noise=0.01), EffortConfig(max_pairs=9, precision=1e-6, arrangements=3)
    raced = race(device.take, effort, WORKER)
    assert len(raced.edited) == 9 and sorted(device.asked) == [0] * 9 + [1] * 9 + [2] * 9


def test_too_few_pairs_for_the_confidence_are_not_looked_at() -> None:
    device = Device(0, 0.8)
    raced = race(device.take, EffortConfig(confidence=0.99), WORKER, 1.0)
    assert not raced.alone and len(raced.edited) > 4
