"""The read floor: which launch counts, and that all go through the same histories on all sets."""

import numpy as np
import pytest
from fake_gpu import READINGS, FakeReading, FakeVendor
from msgspec.structs import replace

from cudal2.problem import parse
from cudal2.worker.cuda import floor
from cudal2.worker.cuda.pairing import TimingContext
from cudal2.worker.timing import ReadFloor

BASELINES = ("cublas-tn", "cublaslt-nn")


@pytest.fixture
def readings(monkeypatch) -> dict[str, FakeReading]:
    made = {launch: FakeReading(seconds) for launch, seconds in READINGS.items()}
    monkeypatch.setattr(FakeVendor, "readings", lambda self, sets: made)
    return made


def test_the_fastest_launch_counts_and_touches_do_not(context: TimingContext, readings, monkeypatch) -> None:
    monkeypatch.setattr(FakeVendor, "touch_seconds", 3e-7)
    found = floor.measure(replace(context, touch_seconds=3e-7), BASELINES)
    assert found.launch == min(READINGS, key=READINGS.__getitem__)
    assert found.rounds == pytest.approx([READINGS[found.launch]] * floor.ROUNDS)
    assert list(found.baselines) == list(BASELINES)
    assert all(len(rounds) == floor.ROUNDS for rounds in found.baselines.values())


@pytest.mark.parametrize("context", [parse("40_24_32_nn_f32"), parse("5_24_32_tn_f32_bf16_bias")], indirect=True)
def test_all_go_through_the_same_histories_each_on_every_set(context: TimingContext, readings, monkeypatch) -> None:
    asked: list[tuple] = []

    def run(name: str, history) -> float:
        asked.append((tuple(history.order), history.touches(context.arena.inputs).tobytes()))
        return 1e-5

    monkeypatch.setattr(context.baseline, "run", run)
    floor.measure(context, ("torch-nn", "torch-tn"))
    every = sorted(readings.values(), key=lambda one: one.seconds)
    seen = [one.seen for one in every]
    assert [len(one) for one in seen] == [*[floor.SIEVE + floor.ROUNDS + 2] * floor.FINALISTS, floor.SIEVE + 1]
    assert seen[0] == seen[1] == seen[2] and seen[3] == seen[0][: floor.SIEVE + 1]
    assert asked[::2] == asked[1::2] == seen[0][floor.SIEVE + 1 :], "whose turn it was, and that of each"
    assert all(sorted(order) == list(range(context.arena.buffers.sets)) for order, _ in seen[0])
    assert len(set(seen[0])) == len(seen[0]), "none is known from before"


def test_a_spread_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    drawn = [ReadFloor("1x256x4", rng.lognormal(size=floor.ROUNDS).tolist(), {}).spread for _ in range(2000)]
    assert 0.94 < np.mean([low <= 1 <= high for _, low, high in drawn]) < 0.99
    assert ReadFloor("1x256x4", [3.0, 1.0, 2.0], {}).spread == (2.0, 1.0, 3.0)
