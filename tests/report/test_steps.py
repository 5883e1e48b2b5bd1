"""Training's samples step by step."""

import math

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
