"""The loop that times a candidate against a baseline, with sides that write down what they are asked for."""

import random
import time

import msgspec
import pytest
import torch

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status, Timing
from cudal2.worker import measurement
from cudal2.worker.measurement import Batch, Disturbed, Sides, measure, plausible, undisturbed
from cudal2.worker.outcome import CandidateFailed
from cudal2.worker.timing import look_counts

CONFIG = WorkerConfig(min_pairs=3, max_pairs=9, precision=0.01)
STEADY = {"candidate": 1e-3, "baseline": 2e-3}


class Recorded(Sides):
    """Right results, at the seconds that `speed` gives for a side; `steps` is what happened."""

    problem, rounding, slots = Problem(8, 8, 8), 1, range(2, 23)

    def __init__(self, warm_up: bool, looks_always: bool = False, counts: tuple[int, int] = (4, 3)) -> None:
        self.warm_up, self.looks_always, self.counts = warm_up, looks_always, counts
        self.steps: list[tuple[str, ...]] = []
        self.batches: list[Batch] = []
        self.seen: list[tuple[list[float], list[float]]] = []
        self.wrong: set[int] = set()  # numbers of batches

    def calls(self, candidate, baseline):
        self.seen.append((list(candidate), list(baseline)))
        return self.counts

    def wake(self, batch):
        self.batches.append(batch)
        self.steps.append(("wake",))

    def fill(self, batch):
        self.steps.append(("fill",))

    def ready(self, role, batch):
        self.steps.append(("ready", role))

    def run(self, role, batch):
        self.steps.append(("run", role))
        return self.speed(role)

    def speed(self, role):
        return STEADY[role] * (1 + 1e-6 * (len(self.batches) % 2))  # so that the interval has a width

    def outputs(self, batch):
        self.steps.append(("outputs",))
        right = torch.ones(batch.candidate, 8, 8, dtype=torch.float16)
        result = right.clone()
        if len(self.batches) in self.wrong:
            result[-1, 7, 7] = 9
        return [(right, right), (result, right)]

    def look_closer(self, batch):
        self.steps.append(("look_closer",))


KINDS = pytest.mark.parametrize(("warm_up", "always"), [(False, False), (True, True), (True, False), (False, True)])


@KINDS
def test_inputs_come_when_both_sides_are_awake_and_outputs_are_poisoned_before_each_runs(warm_up, always) -> None:
    sides = Recorded(warm_up, always)
    measure(sides, CONFIG, "base", "device")
    steps = [step for step in sides.steps if step != ("look_closer",)]
    for batch, number in zip(sides.batches, range(0, len(steps), 7), strict=True):
        one, other = batch.order
        assert steps[number : number + 7] == [
            ("wake",),
            ("fill",),
            *(("ready", one), ("run", one)),
            *(("ready", other), ("run", other)),
            ("outputs",),
        ]
    counted, looks = len(sides.batches) - warm_up, sides.steps.count(("look_closer",))
    assert looks == counted if always else counted // CONFIG.min_pairs <= looks <= -(-counted // CONFIG.min_pairs)


@KINDS
def test_only_timed_batches_count_and_no_warm_up(warm_up, always) -> None:
    sides = Recorded(warm_up, always)
    found = measure(sides, CONFIG, "base", "offline")
    timed = sides.batches[warm_up:]
    assert found.pairs == len(timed) and found.pairs in look_counts(CONFIG.min_pairs, CONFIG.max_pairs)
    assert (found.baseline, found.protocol, found.calls) == ("base", "offline", 4)
    assert found.speedup == pytest.approx(2, rel=1e-3)
    assert all(len(one) == len(other) for one, other in sides.seen)


def test_a_warm_up_moves_nothing() -> None:
    class SlowAtFirst(Recorded):
        def speed(self, role):
            return 1.0 if len(self.batches) == 1 else super().speed(role)

    assert measure(SlowAtFirst(True, False), CONFIG, "base", "device").candidate_us == pytest.approx(1e3, rel=1e-3)


def test_who_takes_long_to_wake_up_does_not_end_the_measuring() -> None:
    class Sleepy(Recorded):
        def wake(self, batch):
            super().wake(batch)
            time.sleep(0.1)

        def speed(self, role):
            return STEADY[role] * random.uniform(1, 2)

    config = msgspec.structs.replace(CONFIG, timing_seconds=0.3, precision=1e-6, disturbed=1e9)
    assert measure(Sleepy(False), config, "base", "device").pairs == CONFIG.max_pairs


def test_when_one_call_is_looked_at_closely_is_unknown() -> None:
    moments = set()
    for _ in range(60):
        sides = Recorded(False)
        measure(sides, CONFIG, "base", "device")
        moments.add(sides.steps.index(("look_closer",)) // 7)
    assert moments == set(range(1, CONFIG.min_pairs + 1))


@pytest.mark.parametrize("counts", [(4, 3), (3, 5), (1, 1), (21, 7)])
def test_batches_move_on_through_the_slots_and_stay_inside(counts) -> None:
    sides = Recorded(False, False, counts)
    config = msgspec.structs.replace(CONFIG, min_pairs=9)
    measure(sides, config, "base", "device")
    size = max(counts)
    starts = [batch.first for batch in sides.batches]
    assert all(batch.window == slice(batch.first, batch.first + size) for batch in sides.batches)
    every = list(range(sides.slots.start, sides.slots.stop - size + 1, size))
    assert starts == [every[number % len(every)] for number in range(len(starts))]


def test_either_side_may_be_first() -> None:
    leaders = set()
    for _ in range(30):
        sides = Recorded(False, False)
        measure(sides, CONFIG, "base", "device")
        leaders |= {batch.leader for batch in sides.batches}
    assert leaders == {"candidate", "baseline"}


@KINDS
@pytest.mark.parametrize("number", [1, 3])
def test_every_output_of_every_batch_is_compared(warm_up, always, number) -> None:
    sides = Recorded(warm_up, always)
    sides.wrong = {number}
    with pytest.raises(CandidateFailed) as failed:
        measure(sides, CONFIG, "base", "device")
    assert failed.value.status is Status.WRONG and len(sides.batches) == number


def timing(baseline_us: float = 2.0, low: float = 0.9, high: float = 1.1) -> Timing:
    return Timing("base", "device", 2.0, baseline_us, 1.0, low, high, pairs=7, calls=1)


def test_a_disturbed_measurement_is_made_again_and_then_a_fault() -> None:
    def disturbed() -> Timing:
        raise Disturbed("busy", "wait")

    tries = iter([lambda: timing(4.0), disturbed, timing])
    assert undisturbed(lambda: next(tries)(), 2e-6, 1.6) == timing()
    for one in (lambda: timing(4.0), disturbed):
        again = iter([one] * measurement.TRIES + [timing])
        with pytest.raises(HarnessFault, match="busy"):
            undisturbed(lambda again=again: next(again)(), 2e-6, 1.6)


@pytest.mark.parametrize("erratic", ["candidate", "baseline"])
def test_a_kernel_that_is_now_fast_now_slow_gets_a_verdict_beside_a_steady_baseline(erratic) -> None:
    """Else it would escape a bad reward. The reward counts the lower end."""

    class Erratic(Recorded):
        def speed(self, role):
            return super().speed(role) * (1 + 3 * (role == erratic and len(self.batches) % 2))

    if erratic == "baseline":
        with pytest.raises(Disturbed, match="now fast, now slow"):
            measure(Erratic(False, False), CONFIG, "base", "device")
    else:
        found = measure(Erratic(False, False), CONFIG, "base", "device")
        assert found.low == pytest.approx(0.5, rel=1e-2) and found.high == pytest.approx(2, rel=1e-2)


def test_nothing_is_faster_than_possible() -> None:
    assert plausible(timing(), 2e-6) == timing()
    with pytest.raises(CandidateFailed) as failed:
        plausible(timing(), 2.1e-6)
    assert failed.value.status is Status.IMPLAUSIBLE


@pytest.mark.parametrize("least", [4, 12])
def test_timing_goes_on_until_enough_batches_were_watched(least) -> None:
    sides = Recorded(warm_up=False)
    sides.watched = lambda: len(sides.batches) >= least
    assert measure(sides, CONFIG, "base", "device").pairs >= least
    sides.watched = lambda: False
    with pytest.raises(Disturbed, match="too busy to watch"):
        measure(sides, CONFIG, "base", "device")
