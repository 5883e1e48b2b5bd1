import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from pathlib import Path

import msgspec
import pytest
from specimens import ELSEWHERE, HERE, PROBLEM, candidate, edited, verdict

from cudal2.archive import records, selection
from cudal2.archive.records import Origin
from cudal2.archive.selection import Comparable
from cudal2.archive.store import ANY, Archive
from cudal2.config import PromptConfig
from cudal2.policy import prompts
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.target import CPU

F = HERE.fingerprint


@pytest.fixture
def archive(tmp_path):
    with Archive(tmp_path / "archive.sqlite") as archive:
        yield archive


def kernels(archive, fingerprint=F) -> Comparable:
    return Comparable(archive, "cpu", fingerprint)


def origin(step=0, index=0, **fields):
    return {"kind": "train", "run": "r", "step": step, "index": index, **fields}


def put(archive, text, speedup, problem=PROBLEM, where=None, **fields):
    entry = candidate(text, problem)
    archive.add(verdict(entry, speedup, **fields), entry, where)
    return entry


def test_returns_the_verdict_and_source_it_was_given(archive):
    given = put(archive, "a", 1.5)
    found = kernels(archive, F).best(PROBLEM)
    assert found.source == given.source
    assert found.verdict == verdict(given, 1.5)
    assert archive.source(found.source_hash) == given.source
    with pytest.raises(HarnessFault, match="no source 123"):
        archive.source("123")


def test_an_edited_kernel_is_one_of_its_own_and_names_its_source(archive):
    """It ranks beside its source; what an author of sources is shown leaves it out."""
    plain, fast, slow = candidate("a"), edited("a"), edited("a", end=5)
    for one, speedup in ((plain, 1.2), (fast, 1.5), (slow, 1.1)):
        archive.add(verdict(one, speedup), one, None)
    ranked = kernels(archive).ranked(PROBLEM)
    assert [entry.edit for entry in ranked] == [fast.edit, None, slow.edit]
    assert {entry.source for entry in ranked} == {plain.source}
    assert archive.source(fast.kernel_hash) == archive.source(plain.kernel_hash) == plain.source
    assert (archive.edit(fast.kernel_hash), archive.edit(plain.kernel_hash)) == (fast.edit, None)
    shown = selection.exemplars(kernels(archive), PROBLEM, 9, random.Random(0))
    assert [entry.edit for entry in shown] == [None]


def test_an_edited_kernel_has_its_last_verdict_and_its_failures_teach_no_author(archive):
    plain, changed = candidate("a"), edited("a")
    archive.add(verdict(plain, 1.0), plain, None)
    for speedup in (2.0, 1.5):
        archive.add(verdict(changed, speedup), changed, origin())
    best = kernels(archive).best(PROBLEM)
    assert (best.edit, best.verdict.speedup) == (changed.edit, 1.5)
    assert [sample.source_hash for sample in archive.samples("train")] == [changed.kernel_hash]
    archive.add(verdict(changed, None, status=Status.REJECTED), changed, None)
    assert kernels(archive).best(PROBLEM).edit is None
    assert selection.failures(kernels(archive), PROBLEM, 9) == []


def test_best_is_the_greatest_lower_bound_among_correct_kernels(archive):
    put(archive, "slow", 0.5)
    fast = put(archive, "fast", 1.5)
    put(archive, "broken", None)
    assert kernels(archive, F).best(PROBLEM).source == fast.source
    assert kernels(archive, F).best(Problem(8, 8, 8)) is None


def test_a_later_measurement_replaces_a_lucky_one(archive):
    put(archive, "lucky", 3.0)
    steady = put(archive, "steady", 1.5)
    put(archive, "lucky", 1.1)
    assert kernels(archive, F).best(PROBLEM).source == steady.source
    put(archive, "steady", None, status=Status.WRONG)
    assert [entry.verdict.speedup for entry in kernels(archive, F).ranked(PROBLEM)] == [1.1]


def test_environments_are_compared_only_when_asked(archive):
    put(archive, "here", 1.2)
    there = put(archive, "there", 9.0, environment=ELSEWHERE)
    assert kernels(archive, F).best(PROBLEM).verdict.speedup == 1.2
    assert kernels(archive, ANY).best(PROBLEM).source == there.source
    assert list(archive.environments().values()) == [HERE, ELSEWHERE]


def test_adding_a_sample_twice_changes_nothing(archive):
    entry = candidate()
    first = verdict(entry, 1.5)
    archive.add(first, entry, origin(reward=0.25))
    archive.add(msgspec.structs.replace(first, cached=True), entry, origin(reward=0.25))
    (sample,) = archive.samples("train", "r")
    assert (sample.origin.reward, sample.speedup, sample.problem) == (0.25, 1.5, PROBLEM)
    assert len(kernels(archive, F).ranked(PROBLEM)) == 1


def test_a_replayed_step_replaces_its_samples_and_keeps_the_verdicts(archive):
    put(archive, "a", 1.0, where=origin(3, 0))
    put(archive, "b", 2.0, where=origin(3, 0))
    assert [sample.speedup for sample in archive.samples()] == [2.0]
    assert len(kernels(archive, F).ranked(PROBLEM)) == 2


def test_a_sample_keeps_its_own_verdict_when_its_kernel_is_measured_again(archive):
    entry = candidate()
    first = verdict(entry, 1.5)
    archive.add(first, entry, origin(3, 0))
    archive.add(verdict(entry, 2.5), entry, origin(4, 0))
    assert [sample.low for sample in archive.samples()] == [first.timing.low, verdict(entry, 2.5).timing.low]
    assert archive.verdict(Origin(**origin(3, 0))) == first
    assert archive.verdict(Origin(**origin(3, 1))) is None
    put(archive, "b", None, where=origin(5, 0))
    assert [*archive.samples()][-1].low is None


def test_samples_come_in_order_of_step_and_index(archive):
    places = [(2, 1), (10, 0), (2, 0), (0, 5)]
    for step, index in places:
        put(archive, "a", 1.0, where=origin(step, index))
    put(archive, "a", 1.0, where={"kind": "search", "run": "other", "step": 0, "index": 0})
    assert [(s.origin.step, s.origin.index) for s in archive.samples("train", "r")] == sorted(places)
    assert len(list(archive.samples())) == 5


def test_an_unknown_origin_field_or_a_foreign_verdict_is_refused(archive):
    with pytest.raises(ValueError, match="epoch"):
        put(archive, "a", 1.0, where=origin(epoch=1))
    with pytest.raises(ValueError, match="64_128_256"):
        archive.add(verdict(candidate()), candidate(problem=Problem(8, 8, 8)), None)
    assert kernels(archive, ANY).best(PROBLEM) is None


def test_exemplars_are_good_medium_and_slow_kernels(archive):
    for index in range(30):
        put(archive, f"k{index}", 1.0 + index)
    chosen = selection.exemplars(kernels(archive), PROBLEM, 3, random.Random(0))
    good, medium, slow = (entry.verdict.speedup for entry in chosen)
    assert slow < 11 <= medium < 21 <= good
    again = selection.exemplars(kernels(archive), PROBLEM, 3, random.Random(0))
    assert again == chosen


def test_exemplars_fill_up_from_the_nearest_problems_of_the_same_layout(archive):
    near, far = Problem(64, 128, 512), Problem(2048, 2048, 2048)
    put(archive, "own", 1.0)
    put(archive, "near", 2.0, near)
    put(archive, "far", 3.0, far)
    put(archive, "nn", 4.0, Problem(64, 128, 256, "nn"))
    chosen = selection.exemplars(kernels(archive), PROBLEM, 2, random.Random(0))
    assert [entry.verdict.speedup for entry in chosen] == [2.0, 1.0]
    assert [entry.verdict.problem for entry in selection.nearest(kernels(archive), PROBLEM, 5)] == [near, far]
    assert selection.exemplars(kernels(archive), PROBLEM, 0, random.Random(0)) == []


def test_a_kernel_that_was_only_checked_is_no_exemplar(archive):
    put(archive, "timed", 1.0)
    untimed = candidate("checked")
    archive.add(msgspec.structs.replace(verdict(untimed), timings=()), untimed, None)
    chosen = selection.exemplars(kernels(archive), PROBLEM, 3, random.Random(0))
    assert [entry.source for entry in chosen] == [candidate("timed").source]
    prompts.render(PromptConfig(template="instruct", exemplars=3), False, PROBLEM, CPU, chosen)


def test_failures_carry_the_compilers_words_latest_first(archive):
    put(archive, "far", None, Problem(8, 8, 8), log="far")
    put(archive, "old", None, log="old")
    put(archive, "new", None, log="new")
    logs = [entry.verdict.log for entry in selection.failures(kernels(archive), PROBLEM, 3)]
    assert logs == ["new", "old", "far"]


def test_a_new_archive_is_opened_by_many_at_once(tmp_path):
    """As by all processes of a training."""
    for number in range(60):
        barrier = threading.Barrier(6)

        def opened(_, path=tmp_path / f"{number}.sqlite", barrier=barrier):
            barrier.wait()
            Archive(path).close()

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(opened, range(6)))


def _write(path, run, count, barrier):
    barrier.wait()
    with Archive(path) as archive:
        for index in range(count):
            entry = candidate(f"{run} {index}")
            archive.add(verdict(entry, 1.0), entry, {"kind": "train", "run": run, "step": index, "index": 0})


def test_writers_at_once_and_one_killed_lose_nothing(tmp_path):
    """All writers also race to make the file; the victim is killed while it writes."""
    path, count = tmp_path / "archive.sqlite", 60
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(4)
    writers = [spawn.Process(target=_write, args=(path, f"w{i}", count, barrier)) for i in range(3)]
    victim = spawn.Process(target=_write, args=(path, "victim", 1 << 30, barrier))
    for process in (*writers, victim):
        process.start()
    try:
        deadline = time.monotonic() + 30
        seen = 0
        while seen < 5:
            assert victim.is_alive() and time.monotonic() < deadline, "the victim wrote nothing"
            time.sleep(0.01)
            with Archive(path) as archive:
                seen = len(list(archive.samples(run="victim")))
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        for process in (*writers, victim):
            process.join(30)
    assert [process.exitcode for process in writers] == [0, 0, 0]
    with Archive(path) as archive:
        for run in ("w0", "w1", "w2"):
            assert [sample.origin.step for sample in archive.samples(run=run)] == list(range(count))
        survived = [sample.origin.step for sample in archive.samples(run="victim")]
        assert len(survived) >= seen and survived == list(range(len(survived)))
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("damage", ["header", "pages"])
def test_a_corrupt_file_is_named_and_left_as_it_is(tmp_path, damage):
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        for index in range(50):
            put(archive, f"k{index}", 1.0)
    data = bytearray(path.read_bytes())
    data[: 100 if damage == "header" else 0] = b"\xa5" * (100 if damage == "header" else 0)
    data[4096:] = b"\xa5" * len(data[4096:])
    path.write_bytes(data)
    with pytest.raises(HarnessFault, match=r"archive\.sqlite") as fault, Archive(path) as archive:
        kernels(archive, F).best(PROBLEM)
    assert "aside" in fault.value.remedy
    assert path.read_bytes() == data


def test_a_full_disk_is_a_fault_and_what_was_there_stays(archive):
    put(archive, "a", 1.0)
    pages = archive._pragma("page_count")
    archive._pragma(f"max_page_count = {pages}")  # SQLite's own way to a full disk
    with pytest.raises(HarnessFault, match="full") as fault:
        put(archive, "b" * 100_000, 2.0)
    assert "space" in fault.value.remedy
    assert kernels(archive, F).best(PROBLEM).verdict.speedup == 1.0
    archive._pragma("max_page_count = 100000")
    put(archive, "b", 2.0)
    assert kernels(archive, F).best(PROBLEM).verdict.speedup == 2.0


def test_an_unwritable_place_is_a_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessFault, match="run folder"):
        Archive(tmp_path / "file" / "archive.sqlite")
    with pytest.raises(HarnessFault, match="run folder"):
        Archive(tmp_path)


def test_a_read_only_file_is_a_fault_on_writing(tmp_path):
    path = tmp_path / "archive.sqlite"
    with Archive(path) as archive:
        put(archive, "a", 1.0)
        archive._pragma("query_only = on")  # file modes do not bind root
        with pytest.raises(HarnessFault, match="writable"):
            put(archive, "b", 1.0)


def test_a_strange_or_missing_database_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(HarnessFault, match="another program"):
        Archive(tmp_path / "other.sqlite")
    with pytest.raises(ValueError, match="cudal2 train"):
        Archive(tmp_path / "none.sqlite", create=False)
    assert not (tmp_path / "none.sqlite").exists()


def test_an_environment_knows_its_target(archive):
    put(archive, "a", 1.0)
    assert archive.target(F) == "cpu"
    with pytest.raises(ValueError, match="nowhere"):
        archive.target("nowhere")


def test_latest_are_of_the_statuses_asked_for_and_of_this_problem_only(archive):
    for text, status in (("a", Status.WRONG), ("b", Status.TIMEOUT), ("c", Status.WRONG), ("d", Status.PLAN_ERROR)):
        put(archive, text, None, status=status)
    put(archive, "elsewhere", None, Problem(8, 8, 8), status=Status.WRONG)
    asked = (Status.WRONG, Status.TIMEOUT)
    statuses = [entry.verdict.status for entry in kernels(archive).latest(PROBLEM, asked, 9)]
    assert statuses == [Status.WRONG, Status.TIMEOUT, Status.WRONG]
    put(archive, "c", 1.0)  # its last verdict counts
    (entry,) = kernels(archive).latest(PROBLEM, asked, 1)
    assert entry.verdict.status is Status.TIMEOUT


def test_samples_are_told_apart_by_what_asked_for_them(archive):
    """The same run, step and index of two kinds are two samples."""
    for kind, speedup in (("train", 1.0), ("search", 2.0)):
        put(archive, kind, speedup, where=origin(3, 1) | {"kind": kind, "seconds": speedup})
    assert [(s.origin.kind, s.speedup, s.origin.seconds) for s in archive.samples(run="r")] == [
        *[("search", 2.0, 2.0), ("train", 1.0, 1.0)],
    ]
    assert [sample.origin.kind for sample in archive.samples("train")] == ["train"]
    assert archive.verdict(Origin(**origin(3, 1) | {"kind": "search"})).speedup == 2.0
    with pytest.raises(ValueError, match="kind"):
        put(archive, "a", 1.0, where=origin() | {"kind": "dream"})


def dumped(path: Path, name: str) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(Path(__file__).with_name(name).read_text())
    return path


@pytest.fixture
def old(tmp_path):
    """An archive of format 1: `format1.sql` is a dump of one that the version with that format wrote."""
    return dumped(tmp_path / "old.sqlite", "format1.sql")


def test_an_archive_of_before_number_types_is_of_fp16_and_grows_by_nothing_when_its_verdicts_come_again(tmp_path):
    path, nn = dumped(tmp_path / "old.sqlite", "format4.sql"), Problem(64, 64, 64, "nn", "f16")
    before = dump(path)
    with Archive(path) as archive:
        assert kernels(archive).problems() == [nn, PROBLEM] and (nn.dtype, nn.epilogue) == ("fp16", "none")
        assert [entry.low for entry in kernels(archive).ranked(PROBLEM)] == pytest.approx([1.98, 1.7325, 1.485])
        assert kernels(archive).best(nn).verdict.problem == nn
        put(archive, "a", 1.5)
        put(archive, "c", 1.25, problem=nn)
    assert dump(path) == before
    with Archive(path) as archive:
        put(archive, "a", 1.5, problem=msgspec.structs.replace(PROBLEM, dtype="bf16"))
        assert len(kernels(archive).problems()) == 3 and len(kernels(archive).ranked(PROBLEM)) == 3


KINDS = [Problem(64, 128, 256, *kind) for kind in product(("nn", "tn"), ("f32",), ("fp16", "bf16"), ("none", "bias"))]


@pytest.mark.parametrize("asked", KINDS, ids=lambda problem: problem.name)
def test_kinds_of_products_lend_one_another_nothing(archive, asked):
    """No prompt shows a kernel of another dtype or epilogue, nor does a search or an evaluation begin with one."""
    for problem in KINDS:
        put(archive, f"right {problem.name}", 1.5, problem=problem)
        put(archive, f"broken {problem.name}", None, problem=problem)
    far, rng = msgspec.structs.replace(asked, m=7), random.Random(0)
    shown = [
        *selection.nearest(kernels(archive), far, 99),
        *selection.exemplars(kernels(archive), far, 99, rng),
        *filter(None, [selection.parent(kernels(archive), far, 99, rng)]),
        *selection.failures(kernels(archive), far, 99),
    ]
    assert len(shown) == 4 and {entry.verdict.problem for entry in shown} == {asked}
    assert kernels(archive).best(asked).verdict.problem == asked and kernels(archive).best(far) is None


def test_an_archive_of_the_first_format_is_read_and_written(old):
    """Kinds were the beginnings of run names then; nothing is lost, and both openings find the same."""
    for _ in range(2):
        with Archive(old) as archive:
            found = [(s.origin.kind, s.origin.run, s.origin.step, s.origin.index, s.speedup) for s in archive.samples()]
            assert found == [
                ("eval", PROBLEM.name, 0, 0, 1.25),
                ("search", f"cpu {PROBLEM.name} 0123456789abcdef {F}", 3, 4, 2.0),
                ("sft", "sft", 0, 0, 1.0),
                ("train", "demo", 1, 0, 1.5),
                ("train", "demo", 1, 1, None),
                ("train", "demo", 2, 0, 1.5),
            ]
            first = next(archive.samples("train")).origin
            assert (first.policy, first.prompt, first.reward) == ("data/policy", "<|cpu|>", 1.1)
            assert kernels(archive).best(PROBLEM).source == "// searched\nint hgemm() { return 0; }\n"
            assert len(kernels(archive).ranked(PROBLEM)) == 4
    with Archive(old) as archive:
        assert {sample.origin.turn for sample in archive.samples()} == {0}
        put(archive, "new", 3.0, where=origin(turn=2))
        assert len(list(archive.samples())) == 7
    with Archive(old) as archive:
        assert [sample.origin.turn for sample in archive.samples("train", "r")] == [2]


def test_a_kill_during_the_upgrade_leaves_the_first_format(old, monkeypatch):
    statements = records.statements

    def killed(script):
        yield from statements(script)[:-1]
        raise KeyboardInterrupt

    before = dump(old)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(records, "statements", killed)
        Archive(old)
    assert dump(old) == before
    with Archive(old) as archive:
        assert len(list(archive.samples())) == 6


def dump(path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [*database.iterdump(), *map(str, database.execute("PRAGMA user_version"))]


def test_an_archive_of_a_later_format_is_left_alone(old):
    with closing(sqlite3.connect(old)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(HarnessFault, match="not an archive of format"):
        Archive(old)
