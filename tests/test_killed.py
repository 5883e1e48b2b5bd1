"""kill -9 at any moment of a search and of an evaluation (all that a campaign is) loses nothing that was kept.

After every kill all that was there before is there still and unchanged, no process is left behind, and the same command
goes on; in the end nothing is missing.
"""

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hasty
import pytest
from processes import below, names, wait_for
from thorough import count, only_thorough, some

from cudal2.archive import Archive
from cudal2.evaluation import results

SHAPES = ",".join(some(("64_64_64", "64_72_80", "72_64_64", "80_80_64"), 2))
KERNELS, KILLS = count(4, 2), count(4, 1)

pytestmark = [pytest.mark.slow, only_thorough]
Kept = dict[Any, Any]


def archived(run: Path) -> Kept:
    """Every sample and every verdict of a run."""
    if not Archive.file(run).exists():
        return {}
    with Archive.of(run) as archive:
        assert archive.rows("PRAGMA integrity_check") == [("ok",)]
        samples = {(one.origin.run, one.origin.step, one.origin.index): one for one in archive.samples()}
        verdicts = archive.rows("SELECT identity, body FROM verdicts")
        # Its share of the time is known at the end of a round.
        return {place: (one.source_hash, one.status, one.low) for place, one in samples.items()} | dict(verdicts)


def evaluated(run: Path) -> Kept:
    """Every row of an evaluation."""
    return {(row.problem, row.fingerprint): row for row in results.load(run).rows}


def killed(command: list[str], after: float, grown: Callable[[], bool]) -> bool:
    """Start it and kill it `after` seconds from when something new is kept (at once if that is negative), with nothing
    left of it. Whether it was killed: it may have come to its end."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while process.poll() is None and after >= 0 and not grown() and time.monotonic() < until:
            time.sleep(0.3)  # asking costs the command some of its time
        time.sleep(abs(after))
        pids = below(process.pid)
    finally:
        process.kill()
        process.wait()
    assert wait_for(lambda: not names(pids), 15), names(pids)
    return process.returncode == -9


def endure(command: list[str], kept: Callable[[], Kept], rng: random.Random) -> None:
    """Kill the command at random moments, then let it come to its end."""
    before = kept()
    for number in range(KILLS):
        # Every other one while it starts, the others while it judges.
        after = -rng.uniform(0.0, 5.0) if number % 2 else rng.expovariate(2.0)
        there = len(before)
        went_on = killed(command, after, lambda there=there: len(kept()) > there)
        found = kept()
        assert before.items() <= found.items(), f"kill {number}, {after:.2f} s after something was kept"
        before = found
        if not went_on:
            break
    hasty.succeeds(command)
    assert before.items() <= kept().items()


def test_kill_9_at_any_moment_of_a_search_and_an_evaluation_loses_nothing(tmp_path) -> None:
    seed = int(os.environ.get("KILL_SEED", time.time_ns()))
    print(f"KILL_SEED={seed}")  # pytest shows it where the test fails
    rng, run = random.Random(seed), tmp_path / "run"
    where = run, tmp_path / "cache", SHAPES
    endure(hasty.search(*where, f"search.kernels={KERNELS}", "search.generation=1"), lambda: archived(run), rng)
    count = len(SHAPES.split(","))
    with Archive.of(run) as archive:
        assert len(list(archive.samples("search"))) == KERNELS * count
    earned = archived(run)
    endure(hasty.evaluate(*where, "finalists=2"), lambda: evaluated(run), rng)
    assert len(evaluated(run)) == count and earned == archived(run)
    assert not (run / "eval" / "results.jsonl").exists()
    lines = (run / "eval" / "results.csv").read_text().splitlines()[1:]
    assert len({tuple(line.split(",")[:3]) for line in lines}) == count
    assert sqlite3.connect(Archive.file(run)).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
