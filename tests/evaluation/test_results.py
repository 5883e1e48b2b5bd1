"""Rows outlive whatever happens to the process that finds them, and to its disk."""

import io
import os
import signal

import msgspec
import pytest
from disks import no_file_beyond
from evaluating import FakePool
from processes import wait_for
from rich.console import Console
from specimens import HERE, candidate, evaluation, timing, verdict

from cudal2.archive import Archive
from cudal2.evaluation import results
from cudal2.evaluation import run as evaluate
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.results import add, joined, load, only_evaluation_of, save
from cudal2.problem import Problem, grid
from cudal2.records import HarnessFault

PROBLEMS = [problem for problem in grid() if problem.m == problem.n == 64]


def row(problem: Problem, speedup: float = 1.5, fingerprint: str = "f") -> Row:
    timings = (timing(speedup), timing(2 * speedup, "torch-fp16")) if speedup else ()
    return Row(problem=problem, fingerprint=fingerprint, status="ok" if speedup else "wrong", timings=timings)


class Kills(FakePool):
    """Ends its own process, as kill -9 does, when it is to judge its `last`th kernel."""

    last = 4

    def look(self, one):
        if len(self.asked) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().look(one)


def test_kill_9_loses_no_row(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(results, "PARQUET", False)
    with Archive.of(tmp_path) as archive:
        for problem in PROBLEMS:
            entry = candidate(problem.name, problem)
            archive.add(verdict(entry, 1.5), entry, None)

    def run(judge) -> None:
        quiet, config = Console(file=io.StringIO()), evaluation(tmp_path, PROBLEMS, neighbours=0)
        with Archive.of(tmp_path) as archive:
            evaluate.run(config, archive, FakePool(), judge, console=quiet)

    child = os.fork()
    if not child:
        run(Kills(1.25))
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    there = load(tmp_path)
    assert len(there.rows) == Kills.last and there.environments == {HERE.fingerprint: HERE}
    judge = FakePool(1.75)
    run(judge)
    assert len(judge.asked) == len(PROBLEMS) - Kills.last
    assert sorted(found.timing.speedup for found in load(tmp_path).rows) == [1.25] * 4 + [1.75] * 6
    assert sorted(path.suffix for path in (tmp_path / "eval").glob("[!.]*")) == [".csv", ".json"]


def test_a_second_evaluation_of_a_run_would_lose_rows_and_is_refused(tmp_path) -> None:
    """But for one that was killed: nobody holds the folder any more."""
    quiet, config = Console(file=io.StringIO()), evaluation(tmp_path, PROBLEMS)
    child = os.fork()
    if not child:
        with only_evaluation_of(tmp_path):
            (tmp_path / "held").touch()
            signal.pause()
    try:
        assert wait_for((tmp_path / "held").exists, 20)
        with Archive.of(tmp_path) as archive, pytest.raises(ValueError, match="another process"):
            evaluate.run(config, archive, FakePool(), FakePool(), console=quiet)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with Archive.of(tmp_path) as archive:
        assert len(evaluate.run(config, archive, FakePool(), FakePool(), console=quiet)) == len(PROBLEMS)


def test_a_row_that_was_cut_short_is_not_there_and_the_others_are(tmp_path) -> None:
    save(tmp_path, Results({}, (row(PROBLEMS[0]),)))
    for problem in PROBLEMS[1:4]:
        add(tmp_path, row(problem))
    path = tmp_path / "eval" / "results.jsonl"
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(0, len(whole) + 1, 41):
        path.write_bytes(whole[:length])
        assert len(load(tmp_path).rows) == 1 + sum(end <= length for end in ends)


def test_what_is_added_replaces_a_former_row_and_is_in_all_files_after_saving(tmp_path) -> None:
    save(tmp_path, Results({}, (row(PROBLEMS[0], 1.0), row(PROBLEMS[0], 1.0, "elsewhere"))))
    add(tmp_path, row(PROBLEMS[0], 2.0))
    found = load(tmp_path)
    assert [one.timing.speedup for one in found.rows] == [2.0, 1.0]
    save(tmp_path, found)
    assert load(tmp_path) == found and not (tmp_path / "eval" / "results.jsonl").exists()
    assert len((tmp_path / "eval" / "results.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize("name", ["results.json", "results.jsonl"])
@pytest.mark.parametrize("content", [b"{}}\n{}\n", b'{"rows": [{"pro\n', b"\xff\xfe\n", b'{"status": 1}\n'])
def test_a_damaged_file_is_named_in_one_line(tmp_path, name: str, content: bytes) -> None:
    save(tmp_path, Results({}, (row(PROBLEMS[0]),)))
    (tmp_path / "eval" / name).write_bytes(content)
    if (name, content) == ("results.json", b'{"status": 1}\n'):
        return  # an evaluation of a later version may hold more than is known here
    with pytest.raises(HarnessFault, match=rf"{name} cannot be read") as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("room", [0, 1, 100, 400])
def test_a_disk_that_fills_up_in_a_row_is_told_in_one_line_and_costs_no_other(tmp_path, room: int) -> None:
    """It takes a part of the row without a word. What is added once there is room again must not join that part."""
    save(tmp_path, Results({}, (row(PROBLEMS[0]),)))
    add(tmp_path, row(PROBLEMS[1]))
    with no_file_beyond((tmp_path / "eval" / "results.jsonl").stat().st_size + room):
        with pytest.raises(HarnessFault, match="cannot be written") as raised:
            add(tmp_path, row(PROBLEMS[2]))
        assert "\n" not in str(raised.value) and raised.value.remedy
        with pytest.raises(HarnessFault, match="cannot be written"):
            add(tmp_path, row(PROBLEMS[3]))
    assert [one.problem for one in load(tmp_path).rows] == PROBLEMS[:2]
    add(tmp_path, row(PROBLEMS[4]))
    assert [one.problem for one in load(tmp_path).rows] == [*PROBLEMS[:2], PROBLEMS[4]]


def test_a_full_disk_leaves_the_files_as_they_were(tmp_path) -> None:
    save(tmp_path, Results({}, (row(PROBLEMS[0]),)))
    before = {path: path.read_bytes() for path in (tmp_path / "eval").iterdir()}
    for room in (0, 10, 300):
        with no_file_beyond(room), pytest.raises(HarnessFault, match="cannot be written"):
            save(tmp_path, Results({}, tuple(map(row, PROBLEMS))))
        assert {path: path.read_bytes() for path in (tmp_path / "eval").iterdir()} == before


def test_parquet_says_what_the_csv_says(tmp_path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = (row(PROBLEMS[0]), row(PROBLEMS[1], 0.0), msgspec.structs.replace(row(PROBLEMS[2]), kernel="ab"))
    save(tmp_path, Results({}, rows))
    table = parquet.read_table(tmp_path / "eval" / "results.parquet").to_pylist()
    lines = (tmp_path / "eval" / "results.csv").read_text().splitlines()
    assert [list(line.values()) for line in table] == [list(line) for line in results._flat(rows)]
    assert len(table) == len(lines) - 1 == 5 and lines[0] == ",".join(table[0])
    assert [line["speedup"] for line in table] == [1.5, 3.0, None, 1.5, 3.0]


def test_without_pyarrow_there_is_no_parquet(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(results, "PARQUET", False)
    save(tmp_path, Results({}, (row(PROBLEMS[0]),)))
    assert {path.name for path in (tmp_path / "eval").iterdir()} == {"results.csv", "results.json"}


def test_several_evaluations_join_what_they_measured_of_one_kernel():
    """Not what was measured elsewhere, unless that is asked for; nor of another kernel, or of one that failed since."""
    one = row(PROBLEMS[0])
    hosts = msgspec.structs.replace(timing(3.0, "torch-tn"), protocol="offline")
    called = msgspec.structs.replace(one, timings=(hosts,))

    def both(first: Row, second: Row, together: bool = False) -> list[tuple]:
        found = joined([Results({"f": HERE}, (first,)), Results({"g": HERE}, (second,))], together)
        assert found.environments.keys() == {"f", "g"}
        return [each.timings for each in found.rows]

    assert both(one, called) == both(called, one) == [(*one.timings, hosts)]
    newer = row(PROBLEMS[0], 1.75)
    assert both(one, newer) == [newer.timings]
    elsewhere = msgspec.structs.replace(called, fingerprint="g")
    assert both(one, elsewhere) == [one.timings, (hosts,)]
    assert both(one, elsewhere, together=True) == [(*one.timings, hosts)]
    assert both(one, msgspec.structs.replace(called, kernel="other")) == [(hosts,)]
    failed = row(PROBLEMS[0], 0)
    assert both(one, failed) == [()]
