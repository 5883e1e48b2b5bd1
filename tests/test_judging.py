"""A judging round: every verdict is archived as it is reached, under each of its origins, and no fault becomes one."""

import pytest
from fakes import FakePool
from specimens import PROBLEM

from cudal2 import judging
from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.config import WorkerConfig
from cudal2.judging import NothingJudged, judge
from cudal2.records import Candidate, HarnessFault

KINDS = ("train", "sft", "search", "eval")


@pytest.fixture
def archive(tmp_path):
    with Archive.of(tmp_path) as archive:
        yield archive


def asked(*texts: str, kind="train") -> list[tuple[Candidate, Origin]]:
    return [
        (Candidate(text, PROBLEM), Origin(kind=kind, run="r", step=1, index=index)) for index, text in enumerate(texts)
    ]


class Failing(FakePool):
    """Has no verdict on what says `fault`."""

    def _one(self, candidate):
        return None if "fault" in candidate.source else super()._one(candidate)


@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_come_in_order_and_lie_in_the_archive(archive, kind):
    given = asked("slow", "fast", "bug", kind=kind)
    verdicts = judge(FakePool(), archive, given)
    assert [verdict.speedup for verdict in verdicts] == [0.5, 2.0, None]
    assert [archive.verdict(origin) for _, origin in given] == verdicts
    assert [sample.origin for sample in archive.samples(kind)] == [origin for _, origin in given]


def test_equal_candidates_are_judged_once_and_kept_under_each_origin(archive):
    class Once(FakePool):
        judged = 0

        def _one(self, candidate):
            Once.judged += 1
            return super()._one(candidate)

    told = []
    verdicts = judge(Once(), archive, asked("fast", "slow", "fast"), lambda *one: told.append(one))
    assert (Once.judged, len(told)) == (2, 2) and verdicts[0] == verdicts[2]
    assert [sample.speedup for sample in archive.samples()] == [2.0, 0.5, 2.0]


def test_a_fault_is_masked_and_leaves_no_trace(archive):
    told = {}
    verdicts = judge(Failing(), archive, asked("fast", "fault", "bug"), lambda c, v: told.update({c.source: v}))
    assert [verdict is None for verdict in verdicts] == [False, True, False]
    assert told["fault"] is None and len(told) == 3
    assert [sample.origin.index for sample in archive.samples()] == [0, 2]


def test_a_round_of_faults_alone_is_one(archive):
    pool = Failing()
    with pytest.raises(NothingJudged, match="doctor"):
        judge(pool, archive, asked("fault", "fault 2"))
    pool.fault = HarnessFault("the GPU is lost", "Restart it")
    with pytest.raises(NothingJudged, match="GPU is lost"):
        judge(pool, archive, asked("fault"))
    assert judge(pool, archive, []) == [] and not list(archive.samples())


def test_a_verdict_is_kept_before_the_round_ends_and_is_told_of_after(archive):
    def interrupted(candidate, verdict):
        assert any(sample.speedup == verdict.speedup for sample in archive.samples())
        if candidate.source == "slow":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(FakePool(), archive, asked("fast", "slow", "bug"), interrupted)
    assert [sample.speedup for sample in archive.samples()] == [2.0, 0.5]


def test_rewards_are_kept_with_what_earned_them(archive):
    judge(Failing(), archive, asked("fast", "fault", "bug"), reward=lambda candidate, verdict: float(verdict.ok))
    assert [sample.origin.reward for sample in archive.samples()] == [1.0, 0.0]


def test_a_folder_is_opened_with_as_many_pools_as_workers(tmp_path, monkeypatch):
    closed = []

    class Pool(FakePool):
        def __init__(self, config, target):
            super().__init__()
            self.given = config, target

        def __exit__(self, *_):
            closed.append(self)

    monkeypatch.setattr(judging, "Pool", Pool)
    one, other = WorkerConfig(threads=1), WorkerConfig(threads=2)
    with judging.opened(tmp_path / "run", "cpu", one, other) as (archive, pools):
        assert archive.path.parent == tmp_path / "run" and archive.path.exists()
        assert [pool.given for pool in pools] == [(one, "cpu"), (other, "cpu")] and not closed
    assert closed == pools[::-1]
    with judging.opened(tmp_path / "run", "cpu", create=False) as (_, none):
        assert none == []
    with pytest.raises(ValueError, match="there is no archive"), judging.opened(tmp_path, "cpu", create=False):
        pass
