"""Training's samples step by step."""

import math
import random
from collections import Counter

import pytest
from specimens import candidate, verdict

from cudal2 import report
from cudal2.archive import Archive
from cudal2.records import Status
from cudal2.report import steps


def made(folder, kinds_and_speeds, run="r"):
    """Samples of these kinds and speeds (None failed), each of a step of its own."""
    with Archive(folder / "archive.sqlite") as archive:
        for step, (kind, speed) in enumerate(kinds_and_speeds):
            entry = candidate(f"{kind} {step}")
            origin = {"kind": kind, "run": run, "step": step, "index": 0, "reward": speed}
            archive.add(verdict(entry, speed), entry, origin)
    return folder


def test_what_a_search_or_an_evaluation_judged_is_no_step_of_training(tmp_path):
    """Whatever their runs are called; the samples of supervised training's check are one."""
    made(tmp_path, [(kind, 1.0) for kind in ("search", "eval", "sft", "train")], tmp_path.name)
    (found,) = report.curves([tmp_path]).values()
    assert [step.step for step in found] == [2, 3]


def test_rise_compares_the_thirds_of_the_steps(tmp_path):
    speeds = [0.5, None, 1.0, 1.0, 1.0, 1.5, 2.5]
    (found,) = report.curves([made(tmp_path, [("train", speed) for speed in speeds])]).values()
    assert steps.rise(found) == pytest.approx((0.25, 2.0))
    assert found[1].statuses == {Status.COMPILE_ERROR: 1}


def step(number, **values):
    """A step with these speedups of each problem."""
    return steps.Step(number, (), Counter({Status.OK: sum(map(len, values.values()))}), values)


def test_a_rise_is_that_of_the_same_problems():
    """Nothing was learnt where only the problems changed from hard to easy."""
    hard_first = [step(n, hard=(0.5, 0.5), **({"easy": (2.0,)} if n > 5 else {})) for n in range(9)]
    assert steps.rise(hard_first)[1] > 0.9 and steps.gain(hard_first) == (0.0, 0.0, 0.0)
    assert "too few steps" in steps.said(hard_first)
    learnt = [step(n, hard=(0.5 + 0.1 * n, 0.6 + 0.1 * n)) for n in range(9)]
    middle, low, high = steps.gain(learnt)
    assert 0 < low < middle < high and middle == pytest.approx(0.6) and "too few" not in steps.said(learnt)


def test_a_small_rise_that_is_sure_does_not_read_as_nothing():
    assert steps.said([step(n, a=(1 + n / 1000, 1.001 + n / 1000)) for n in range(9)]).startswith("+0.006 [0.0")


def test_of_noise_no_rise_is_claimed_more_often_than_the_interval_says():
    rng = random.Random(1)
    runs = [[step(n, a=tuple(rng.gauss(1, 0.3) for _ in range(8))) for n in range(24)] for _ in range(60)]
    sure = sum(low > 0 or high < 0 for _, low, high in map(steps.gain, runs))
    assert sure <= 10  # 5% of them would be 3


@pytest.mark.parametrize("count", [1, 3, 5])
def test_of_few_steps_nothing_is_said(count):
    assert steps.gain([step(n, a=(float(n),)) for n in range(count)]) is None
    assert steps.gain([step(n, **{f"p{n}": (1.0,)}) for n in range(9)]) is None  # no problem came twice


def test_what_is_drawn_has_a_value_for_each_step(tmp_path):
    speeds = [None, 0.5, 2.0, 1.0]
    (found,) = report.curves([made(tmp_path, [("train", speed) for speed in speeds])]).values()
    drawn = steps.drawn(found)
    assert drawn["best"] == [0.0, 0.5, 2.0, 2.0] and drawn["all"] == [0.0, 0.5, 2.0, 1.0]
    assert drawn["working"]["mean"] == [None, 0.5, 2.0, 1.0] and drawn["rewards"]["high"] == drawn["working"]["mean"]
    assert drawn["statuses"] == {"ok": [0, 1, 1, 1], "compile_error": [1, 0, 0, 0]}


def test_quantiles_and_means_of_little():
    assert steps.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert steps.quantile([1.0], 0.9) == 1.0
    assert steps.mean([1.0, 2.0]) == 1.5 and math.isnan(steps.mean([]))
