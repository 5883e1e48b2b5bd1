"""A run whose disk fills up, or can only be read: one clear line, nothing kept is lost, and the command goes on."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import hasty
import pytest
from disks import Disk, disk
from hasty import succeeds

from cudal2 import cli
from cudal2.archive import Archive
from cudal2.evaluation import results
from cudal2.records import Status

SHAPES = "64_64_64,64_72_80"
COUNT = 2

pytestmark = pytest.mark.slow


def told(command: list[str]) -> str:
    """The one line on why the command failed."""
    with redirect_stderr(io.StringIO()) as said:
        assert cli.main(command[len(hasty.PROGRAM) :]) == 2
    (line,) = (line for line in said.getvalue().splitlines() if line.startswith("cudal2: "))
    return line


def judged(run: Path) -> dict[tuple[str, int, int], tuple[str, Status]]:
    with Archive.of(run, create=False) as archive:
        assert archive.rows("PRAGMA integrity_check") == [("ok",)]
        samples = list(archive.samples())
    return {(one.origin.run, one.origin.step, one.origin.index): (one.source_hash, one.status) for one in samples}


@pytest.fixture
def small(tmp_path):
    """A disk of four megabytes for a run; its worker's cache lies elsewhere."""
    with disk(tmp_path / "disk", 4000) as made:
        yield made


def test_a_run_whose_disk_fills_up_goes_on_with_all_that_it_had(small: Disk, tmp_path) -> None:
    """While it searches, evaluates and exports; in the end as if there had always been room."""
    run, cache = small.path / "run", tmp_path / "cache"
    search = hasty.search(run, cache, SHAPES, "search.kernels=2", "search.generation=1")
    small.fill(160)
    assert "Free disk space" in told(search)
    small.resize(6000)
    before = judged(run)
    succeeds(search)
    assert before.items() <= judged(run).items() and len(judged(run)) == 2 * COUNT

    evaluate = hasty.evaluate(run, cache, SHAPES, "finalists=2")
    small.empty()
    for left in (0, 40):  # too little for the archive's log, and for the results beside it
        small.fill(left)
        assert "ake room" in told(evaluate)
        small.empty()
    succeeds(evaluate)
    rows = results.load(run).rows
    assert len(rows) == COUNT and len(judged(run)) == 2 * COUNT

    export = [*hasty.PROGRAM, "export", str(run), "worker.threads=1", f"worker.cache={cache}"]
    succeeds(export)
    kept = {path: path.read_bytes() for path in (run / "export").rglob("*") if path.is_file()}
    small.fill(64)
    assert "the former export stays" in told(export)
    small.only_read()
    for command in (export, evaluate):
        assert "writable" in told(command)
    assert kept == {path: path.read_bytes() for path in (run / "export").rglob("*") if path.is_file()}
    assert results.load(run).rows == rows
    # What was exported is judged from where it can only be read.
    succeeds(hasty.evaluate(tmp_path / "again", cache, SHAPES, f"source={run / 'export'}"))
    assert {row.status for row in results.load(tmp_path / "again").rows} == {"ok"}


def test_no_room_to_compile_says_nothing_about_a_kernel(small: Disk, tmp_path) -> None:
    run = tmp_path / "run"
    search = hasty.search(run, tmp_path / "cache", SHAPES, "search.kernels=1", "search.generation=1")
    (small.path / "tmp").mkdir()
    where = os.environ | {"TMPDIR": str(small.path / "tmp")}
    done = subprocess.run([sys.executable, *search], capture_output=True, text=True, timeout=300, env=where)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "TMPDIR" in done.stderr.splitlines()[-1] and judged(run) == {}


def test_a_cache_without_room_costs_what_it_would_have_kept(small: Disk, tmp_path) -> None:
    search = hasty.search(tmp_path / "run", small.path, SHAPES, "search.kernels=1", "search.generation=1")
    small.fill(40)
    succeeds(search)
    assert len(judged(tmp_path / "run")) == COUNT
