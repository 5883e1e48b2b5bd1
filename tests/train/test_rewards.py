"""Every reward is bounded, monotone in speed, and ranks all failures below all working kernels."""

from pkgutil import iter_modules
from types import SimpleNamespace

import msgspec
import pytest
import torch
from fakes import FakePool

from cudal2.archive import Archive
from cudal2.config import RewardConfig, TrainConfig, load
from cudal2.problem import Problem
from cudal2.records import Environment, HarnessFault, Status, Timing, Verdict
from cudal2.train import rewards
from cudal2.train.judge import Judge
from cudal2.train.rewards import HIGHEST, LOWEST, reward
from cudal2.train.rewards.log import FAILURES

NAMES = [module.name for module in iter_modules(rewards.__path__)]
SPEEDS = [2.0**octave for octave in range(-40, 41)]
PROBLEM = Problem(64, 64, 64)


def judged(status: Status, *speedups: float, max_error: float = 0.0, spread: float = 1.02) -> Verdict:
    timings = tuple(
        Timing(f"b{i}", "device", 1.0, speed, speed, speed / spread, speed * spread, 5, 10)
        for i, speed in enumerate(speedups)
    )
    environment = Environment("d", 2, "c", "f", "l", "h")
    return Verdict("key", PROBLEM, "cpu", status, environment, timings=timings, max_error=max_error, rho=1.0)


def test_every_failure_has_a_grade():
    assert set(FAILURES) == set(Status) - {Status.OK}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beta", [0.0, 10.0])
@pytest.mark.parametrize("octaves", [0.5, 5.0])
def test_bounded_and_failures_below_every_working_kernel(name, beta, octaves):
    config = RewardConfig(name=name, beta=beta, octaves=octaves)
    worst = min(
        reward(judged(Status.OK, speed, speed * 10, max_error=error), "x" * 60_000, config)
        for speed in SPEEDS
        for error in (0.0, 1e9)
    )
    best = reward(judged(Status.OK, 1e12, 1e12), "", config)
    failures = [reward(judged(status), "", config) for status in FAILURES]
    assert min(failures) >= LOWEST and max(failures) < worst <= best <= HIGHEST


@pytest.mark.parametrize("name", NAMES)
def test_faster_never_earns_less(name):
    config = RewardConfig(name=name)
    earned = [reward(judged(Status.OK, speed, 3 * speed), "", config) for speed in SPEEDS]
    assert earned == sorted(earned)
    assert len(set(earned)) >= 3


def test_log_grades_failures_by_how_far_they_got():
    order = [Status.NO_SOURCE, Status.REJECTED, Status.COMPILE_ERROR, Status.WRONG]
    grades = [reward(judged(status), "", RewardConfig()) for status in order]
    assert grades == sorted(set(grades))


def test_log_pays_for_the_lower_bound_only():
    config = RewardConfig(name="log")
    sure = judged(Status.OK, 2.0, spread=1.01)
    vague = judged(Status.OK, 2.0, spread=1.5)
    assert reward(sure, "", config) > reward(vague, "", config)
    parity = judged(Status.OK, 1.0, spread=1.0)
    assert reward(parity, "", config) == pytest.approx(1.0)
    double = msgspec.structs.replace(parity, timings=judged(Status.OK, 2.0, spread=1.0).timings)
    assert reward(double, "", config) - reward(parity, "", config) == pytest.approx(0.2)


def test_milestones_need_the_margin_over_one_and_over_all_baselines():
    config = RewardConfig(name="milestone", margin=0.05)
    pay = {
        speeds: reward(judged(Status.OK, *speeds, spread=1.0), "", config)
        for speeds in [(0.5, 0.9), (1.04, 1.04), (0.5, 1.06), (1.06, 9.0)]
    }
    assert list(pay.values()) == [1, 1, 2, 3]


def test_paper_charges_for_error_and_length():
    config = RewardConfig(name="paper", alpha=0.1, beta=0.5)
    assert reward(judged(Status.OK, 3.0, spread=1.0), "x" * 1000, config) == pytest.approx(2.5)
    assert reward(judged(Status.OK, 3.0, max_error=2.0, spread=1.0), "", config) == pytest.approx(2.8)


@pytest.mark.parametrize("beta", [0.0, 0.01, 1.0, 10.0])
def test_paper_pays_more_for_every_gain_in_speed_whatever_the_penalty(beta):
    config = RewardConfig(name="paper", beta=beta)
    speeds = [0.01 * 1.02**step for step in range(450)]
    earned = [reward(judged(Status.OK, speed, speed), "x" * 60_000, config) for speed in speeds]
    assert all(torch.tensor(earned).diff() > 0), "as the trainer keeps them"
    assert min(earned) > max(reward(judged(status), "", config) for status in FAILURES) + 0.5


@pytest.mark.parametrize("name", NAMES)
def test_speed_is_the_lower_bound(name):
    """Kernels of one lower bound earn the same, however good their medians."""
    lows = [judged(Status.OK, 1.2 * spread, 1.2 * spread, spread=spread) for spread in (1.0, 1.1, 3.0)]
    first, *others = (reward(verdict, "", RewardConfig(name=name)) for verdict in lows)
    assert others == pytest.approx([first, first])


def test_milestones_are_of_the_devices_clock():
    config = RewardConfig(name="milestone")
    fast, slow = judged(Status.OK, 2.0, 2.0), judged(Status.OK, 0.5, 0.5)
    elsewhere = tuple(msgspec.structs.replace(timing, protocol="offline") for timing in slow.timings + fast.timings)
    for verdict, earned in ((fast, 3), (slow, 1)):
        assert reward(msgspec.structs.replace(verdict, timings=verdict.timings + elsewhere), "", config) == earned


@pytest.mark.parametrize("name", NAMES)
def test_a_correct_kernel_that_was_not_timed_is_no_failure(name):
    with pytest.raises(HarnessFault, match=r"worker\.protocols=\[device\]"):
        reward(judged(Status.OK), "", RewardConfig(name=name))


FLAT = '''
def reward(verdict, source, config):
    """1 for a kernel that works, 0 for one that does not."""
    return float(verdict.ok)
'''


def test_a_reward_is_added_by_one_file(tmp_path, monkeypatch):
    """A run learns from it, by the name of its file."""
    (tmp_path / "flat.py").write_text(FLAT)
    monkeypatch.setattr(rewards, "__path__", [*rewards.__path__, str(tmp_path)])
    config = load("train", [f"run={tmp_path / 'run'}", "reward.name=flat"], TrainConfig)
    with Archive.of(config.run) as archive:
        judge = Judge(config, FakePool(), archive)
        texts = ["int hgemm(){}", "int hgemm(){} bug"]
        state = SimpleNamespace(global_step=0)
        assert judge(["a", "b"], texts, [PROBLEM.name] * 2, state) == [1.0, 0.0]
        assert [sample.origin.reward for sample in archive.samples("train", "run")] == [1.0, 0.0]


def test_an_unknown_reward_is_told_with_those_there_are(tmp_path):
    config = load("train", [f"run={tmp_path}", "reward.name=best"], TrainConfig)
    with (
        Archive.of(tmp_path) as archive,
        pytest.raises(ValueError, match=r"reward\.name=best .* log, milestone, paper"),
    ):
        Judge(config, FakePool(), archive)
