"""A campaign ends in order when its time is up, loses nothing when it is killed, and goes on to the same end."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fakes
import hasty
import pytest
from processes import below, names, wait_for
from rich.console import Console
from specimens import ELSEWHERE, HERE, verdict

from cudal2 import campaign, interrupt, judging
from cudal2.archive import Archive
from cudal2.config import CampaignConfig, ShapesConfig
from cudal2.evaluation import records, results
from cudal2.problem import parse
from cudal2.records import HarnessFault, Status, Verdict
from cudal2.tracking import append, read_metrics

NAMES = ("64_64_64", "64_64_128", "64_128_64", "128_64_64", "128_128_64", "64_128_128")
PROBLEMS = [parse(name) for name in NAMES]


class Judge:
    """Every kernel is right and, by its source, of some speed. `before` is told of each before it is judged."""

    def __init__(self, before=lambda candidate: None, environment=HERE) -> None:
        self.asked: list = []
        self.before, self.environment = before, environment

    def __call__(self, candidate) -> Verdict | None:
        self.asked.append(candidate)
        if self.before(candidate) == "fault":
            return None
        return verdict(candidate, 1 + int(candidate.kernel_hash[:2], 16) / 256, self.environment)


class Killed(Judge):
    """Ends its own process, as kill -9 does, after so many kernels."""

    def __init__(self, last: int) -> None:
        super().__init__(lambda _: len(self.asked) > last and os.kill(os.getpid(), signal.SIGKILL))


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts a campaign of six shapes, two a slice, judged by a `Judge`; `options` are of its configuration."""
    monkeypatch.setattr(results, "PARQUET", False)
    monkeypatch.setattr(campaign.report, "run", lambda folder: folder / "report.html")

    def begin(judge: Judge, run: str = "run", **options) -> list[records.Row]:
        class Pool(fakes.Says):
            def __init__(self, *_: object) -> None:
                super().__init__(judge, judge.environment)

            __enter__ = lambda self: self  # noqa: E731
            __exit__ = lambda self, *_: None  # noqa: E731

        monkeypatch.setattr(judging, "Pool", Pool)
        usual = {"kernels": 4, "methods": ("evolution", "random"), "slice": 2, "export": "never"}
        config = CampaignConfig(run=str(tmp_path / run), shapes=ShapesConfig(names=NAMES), **usual | options)
        begin.said = io.StringIO()
        return campaign.run(config, Console(file=begin.said))

    return begin


def kernels(folder: Path) -> dict[str, set[str]]:
    """The hashes of what was judged for each shape."""
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    with Archive.of(folder) as archive:
        for sample in archive.samples("search"):
            found[sample.problem.mnk].add(sample.source_hash)
    return found


def test_every_shape_gets_its_kernels_by_each_method_and_the_best_is_reported(begin, tmp_path) -> None:
    judge = Judge()
    rows = begin(judge)
    assert {row.problem for row in rows} == set(PROBLEMS) and {row.status for row in rows} == {"ok"}
    assert {len(some) for some in kernels(tmp_path / "run").values()} == {4}
    with Archive.of(tmp_path / "run") as archive:
        methods = [sample.origin.policy for sample in archive.samples("search")]
    assert methods.count("evolution") == methods.count("random") == 12
    asked = len(judge.asked)
    assert begin(judge) == rows and len(judge.asked) == asked, "a campaign that is done is not done again"
    said = begin.said.getvalue()
    assert "6 shapes in 3 slices" in said and "6 shapes are done" in said and "all are done" in said


def test_kill_9_at_any_moment_loses_nothing_and_changes_nothing(begin, tmp_path) -> None:
    begin(Judge(), "whole")
    total = 0
    for last in (3, 14, 21):
        child = os.fork()
        if not child:
            begin(Killed(last))
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        before, total = total, sum(map(len, kernels(tmp_path / "run").values()))
        assert total > before or len(results.load(tmp_path / "run").rows)
    rows = begin(Judge())
    assert kernels(tmp_path / "run") == kernels(tmp_path / "whole")
    best = {row.problem: row.kernel for row in results.load(tmp_path / "whole").rows}
    assert {row.problem: row.kernel for row in rows} == best and len(best) == len(NAMES)


def test_it_ends_in_order_when_the_time_is_up(begin, tmp_path) -> None:
    """In the third slice, as if it came to its end there."""
    judge = Judge(lambda _: len(judge.asked) > 36 and signal.raise_signal(signal.SIGALRM))
    rows = begin(judge, minutes=60)
    assert len(rows) == 4 and "the time is up" in begin.said.getvalue()
    assert "4 of 6 shapes: the same command goes on" in begin.said.getvalue()
    assert [line["shapes"] for line in read_metrics(tmp_path / "run" / campaign.LOG)] == [2, 2, 0]
    assert len(begin(Judge())) == 6


def test_it_says_how_long_the_rest_takes_by_what_it_took_here(begin, tmp_path) -> None:
    begin(Judge(), minutes=0.001)
    assert "known after a slice" in begin.said.getvalue()
    line = {"fingerprint": HERE.fingerprint, "devices": 1, "kernels": 4, "shapes": 2, "seconds": 1200.0}
    for other in ({}, {"fingerprint": "elsewhere", "seconds": 1.0}, {"devices": 4, "seconds": 1.0}):
        append(tmp_path / "run" / campaign.LOG, line | other)
    append(tmp_path / "run" / campaign.LOG, {"export": 1.0, "kernels": 2})
    begin(Judge(), minutes=0.001)
    assert "0 shapes are done; about 60 min left" in begin.said.getvalue()


def test_it_goes_on_with_more_kernels(begin, tmp_path) -> None:
    """What was judged stays; a slice that is still without them is not done, and one that was cut short comes again."""
    first = begin(Judge(), kernels=2)
    before = kernels(tmp_path / "run")
    judge = Judge(lambda _: len(judge.asked) > 14 and signal.raise_signal(signal.SIGALRM))
    begin(judge, minutes=60)
    assert "0 shapes are done" in begin.said.getvalue() and "2 of 6 shapes are done" in begin.said.getvalue()
    rows = begin(Judge())
    after = kernels(tmp_path / "run")
    assert all(before[name] < after[name] and len(after[name]) == 4 for name in NAMES)
    assert [row.problem for row in rows] == [row.problem for row in first]
    assert all(new.timing.speedup >= old.timing.speedup for new, old in zip(rows, first))
    judge = Judge()
    assert begin(judge, kernels=2) == rows == begin(judge) and not judge.asked, "and with fewer it is done"


def test_what_its_log_lost_is_not_taken_for_done_with_more_kernels(begin, tmp_path) -> None:
    """A kill, or a full disk, between a slice's last row and its line: or in the middle of the line."""
    rows, log = begin(Judge(), kernels=2), tmp_path / "run" / campaign.LOG
    first, second, _ = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first + second[:-20])
    judge = Judge()
    assert begin(judge, kernels=2) == rows and not judge.asked, "all is judged"
    log.write_bytes(first + second[:-20])
    judge = Judge(lambda _: len(judge.asked) > 14 and signal.raise_signal(signal.SIGALRM))
    begin(judge, minutes=60)
    assert "2 of 6 shapes are done" in begin.said.getvalue()
    assert begin(Judge()) and {len(some) for some in kernels(tmp_path / "run").values()} == {4}
    judge = Judge()
    begin(judge)
    assert "6 shapes are done" in begin.said.getvalue() and not judge.asked, "lines behind a torn one are read"


def test_no_time_for_a_slice_begins_none(begin) -> None:
    judge = Judge()
    assert begin(judge, minutes=0.001) == [] and not judge.asked


def test_a_shape_that_the_harness_fails_on_ends_nothing_and_comes_again(begin) -> None:
    bad = PROBLEMS[0]
    judge = Judge(lambda candidate: "fault" if candidate.problem == bad else None)
    for _ in range(2):  # the second time nothing else is left to be judged
        assert {row.problem for row in begin(judge)} == set(PROBLEMS[1:])
    assert len(begin(Judge())) == 6


def test_a_shape_whose_figure_a_clock_prevented_comes_again(begin) -> None:
    """Its best kernel was right in the search: in the evaluation it did not end in time, on a busy machine."""
    bad, slow = PROBLEMS[0], Status.TIMEOUT

    class Busy(Judge):
        def __call__(self, candidate) -> Verdict | None:
            found, count = super().__call__(candidate), sum(one.problem == bad for one in self.asked)
            return verdict(candidate, None, HERE, slow) if candidate.problem == bad and count > 4 else found

    assert [row.status for row in begin(Busy()) if row.problem == bad] == [slow]
    judge = Judge()
    assert {row.status for row in begin(judge)} == {"ok"}
    assert {one.problem for one in judge.asked} == {bad}


def test_a_broken_harness_ends_it_with_a_remedy(begin) -> None:
    judge = Judge(lambda _: "fault" if len(judge.asked) > 20 else None)
    with pytest.raises(HarnessFault, match="doctor"):
        begin(judge)
    assert len(judge.asked) < 30
    assert len(begin(Judge())) == 6


def test_it_goes_on_with_its_own_configuration_only(begin, tmp_path) -> None:
    """As long as nothing was judged it has none yet; how long it goes on and what it exports may always change."""
    begin(Judge(), minutes=0.001, slice=3)
    begun = Judge(lambda _: len(begun.asked) > 1 and signal.raise_signal(signal.SIGALRM))
    begin(begun, minutes=60)
    assert judged(tmp_path / "run") == 1
    with pytest.raises(ValueError, match="slice=2 became 3"):
        begin(Judge(), slice=3)
    begin(Judge(), minutes=0.001, export="done")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"run": "x", "trainer": {}}')
    with pytest.raises(ValueError, match="not the configuration of a campaign"):
        begin(Judge(), "other")
    for wrong in ({"methods": ("random", "random")}, {"kernels": 1}):
        with pytest.raises(ValueError, match="cannot be shared"):
            begin(Judge(), **wrong)


def test_what_was_found_elsewhere_does_not_count_here(begin) -> None:
    here, there = Judge(), Judge(environment=ELSEWHERE)
    begin(here)
    assert {row.fingerprint for row in begin(there)} == {ELSEWHERE.fingerprint}
    assert len(here.asked) == len(there.asked)


def test_a_deadline_raises_in_the_middle_and_leaves_no_alarm_behind() -> None:
    limit = interrupt.Deadline(0.05)
    with pytest.raises(interrupt.TimeUp), limit.keeping(0.0):
        time.sleep(10)
    assert limit.left() <= 0 and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(interrupt.TimeUp), limit.keeping(0.0):
        pytest.fail("it is past")
    with interrupt.Deadline(0).keeping(1e9):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def command(folder: Path, *more: str) -> list[str]:
    """A small campaign for the processor, with the policy that ships; its cache lies beside the folder."""
    small = ["shapes=64_64_64,64_72_80", "kernels=4", "slice=1", *hasty.HASTY]
    where = [f"run={folder}", f"worker.cache={folder.parent / 'cache'}"]
    return [*hasty.PROGRAM, "campaign", *small, *where, *more]


def judged(folder: Path) -> int:
    if not Archive.file(folder).exists():
        return 0
    with Archive.of(folder) as archive:
        return len(list(archive.samples("search")))


@pytest.mark.slow
def test_killed_on_a_processor_and_packed_it_goes_on_here_and_elsewhere(tmp_path) -> None:
    here, there = tmp_path / "here" / "run", tmp_path / "there" / "run"
    started = subprocess.Popen([sys.executable, *command(here)], start_new_session=True)
    try:
        assert wait_for(lambda: judged(here) >= 3, 300), "nothing was judged"
    finally:
        started.kill()
        started.wait()
    before = judged(here)
    assert before < 8 and wait_for(lambda: not names(below(started.pid)), 10)
    hasty.succeeds(command(here, "minutes=0.5"))  # ends in order, wherever it then is
    assert judged(here) >= before
    packed = ["pack", here, tmp_path / "parcel", f"cache={here.parent / 'cache'}"]
    unpacked = ["unpack", tmp_path / "parcel", there, f"cache={there.parent / 'cache'}"]
    for words in (packed, unpacked):
        hasty.succeeds([*hasty.PROGRAM, *words])
    hasty.succeeds(command(there))
    rows = results.load(there).rows
    assert len(rows) == 2 and all(row.machine for row in rows) and judged(there) == 8
    assert (there / "report.html").is_file() and (there / "export" / "manifest.json").is_file()
    with Archive.of(there) as archive:  # what was judged before the kill was not judged again
        found = [sample.source_hash for sample in archive.samples("search")]
        assert len(archive.rows("SELECT 1 FROM verdicts")) == len(found) == 8


def test_a_method_that_does_not_exist_is_named_before_anything_is_searched(begin, tmp_path) -> None:
    with pytest.raises(ValueError, match="methods=foo is not known"):
        begin(Judge(), methods=("random", "foo"))
    assert not (tmp_path / "run").exists()
