"""Ctrl-C and SIGTERM end every long verb within seconds, with nothing left behind, and the same command goes on. And
whatever a pool's worker is doing when the pool's process is killed, nothing outlives it."""

import gc
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import fakes
import hasty
import interrupted
import pytest
import specimens
import torch
from naive import ENDLESS, NAIVE
from processes import below, names, wait_for
from safetensors.torch import load_file
from thorough import only_thorough, some
from toolkit import needs_toolkit

from cudal2 import cli
from cudal2.archive import Archive
from cudal2.interrupt import ProcessPool, children, end, leave_with_parent
from cudal2.policy.locate import latest_checkpoint
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.tracking import read_metrics

SECONDS = 8.0
DEFAULT = ["env", "--default-signal=INT"]  # a shell ignores it in the background, and so would what we start
TRAIN = interrupted.__file__
BUSY_COMPILER = (
    """
template <int I> constexpr long sum() {
    long s = 0;
    for (int i = 0; i < 50; ++i)
        for (int j = 0; j < 100000; ++j) s += i ^ j ^ I;
    return s;
}
"""
    + "".join(f"constexpr long s{i} = sum<{i}>();\n" for i in range(200))
    + NAIVE
)
PARENT = """
    import sys
    from cudal2.config import WorkerConfig
    from cudal2.problem import parse
    from cudal2.records import Candidate
    from cudal2.worker.pool.pool import Pool
    if __name__ == "__main__":
        limits = dict(compile_seconds=300, run_seconds=300, timing_seconds=0.1, batch_ms=2, min_pairs=3, disturbed=1e3)
        pool = Pool(WorkerConfig(cache=sys.argv[1], jail=sys.argv[2], threads=1, **limits))
        for source in sys.argv[3:]:
            print(pool.evaluate([Candidate(source, parse("64_64_64"))])[0].status, flush=True)
        sys.stdin.read()
"""


class Piped:
    """A command whose output, errors too, goes into a pipe that somebody reads."""

    def __init__(self, *command: object, **environment: str) -> None:
        words = [*DEFAULT, sys.executable, *map(str, command)]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(words, **both, env=os.environ | environment, text=True, start_new_session=True)

    def __enter__(self) -> "Piped":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def stopped_by(self, number: signal.Signals) -> str:
        """What it printed until every holder of the pipe was gone. No process is left, and the exit code is right."""
        pids = below(self.process.pid)
        started = time.monotonic()
        self.process.send_signal(number)
        said = self.process.communicate(timeout=60)[0]
        assert time.monotonic() - started < SECONDS, said
        assert self.process.returncode == 128 + number, said
        assert wait_for(lambda: not names(pids), 1), names(pids)
        return said


def train(folder: Path, policy: Path, name: str) -> list[object]:
    shapes = ["shapes.names=[64_64_64,64_72_80]", "trainer.steps=3", "trainer.save_steps=2", "worker.run_seconds=600"]
    tiny = fakes.tiny(folder / name, policy)
    return [TRAIN, "train", *tiny, *shapes, *hasty.HASTY, f"worker.cache={folder / 'cache'}"]


@pytest.mark.slow
def test_training_stopped_in_the_middle_of_judging_ends_as_if_undisturbed(tmp_path, monkeypatch) -> None:
    policy = fakes.save_policy(tmp_path / "policy")
    with Piped(*train(tmp_path, policy, "run"), HANG_AT="40") as run:  # in the third step of sixteen
        hangs = wait_for(lambda: "step 2" in steps(tmp_path / "run") and busy(run.process.pid), 120)
        assert hangs, run.process.communicate()[0]
        said = run.stopped_by(signal.SIGTERM)
    assert said.splitlines()[-1].startswith("cudal2: stopped by SIGTERM; ")
    assert latest_checkpoint(tmp_path / "run").name == "checkpoint-2"
    monkeypatch.setattr("cudal2.train.judge.read", interrupted.kernel)
    for name in ("run", "whole"):  # in this process, which has imported torch and trl already
        assert cli.main([str(word) for word in train(tmp_path, policy, name)[1:]]) == 0
    rows, whole = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("run", "whole"))
    assert [timeless(row) for row in rows] == [timeless(row) for row in whole] and len(rows) == 3
    weights = [load_file(latest_checkpoint(tmp_path / name) / "model.safetensors") for name in ("run", "whole")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert len(list(archive.samples("train", "run"))) == 3 * 16


def steps(run: Path) -> list[str]:
    return [f"step {row['step']}" for row in read_metrics(run / "metrics.jsonl")]


def timeless(row: dict) -> dict:
    return {key: value for key, value in row.items() if key not in ("seconds", "verdicts_per_minute", "cached_share")}


def busy(pid: int) -> bool:
    """Whether a candidate has been running for a while: another's calls take milliseconds."""
    before = {one for one in below(pid) if names([one]) == {"runner"}}
    time.sleep(1.5)
    return bool(before & set(below(pid)))


@only_thorough
@pytest.mark.slow
def test_search_and_evaluation_stop_and_go_on(tmp_path) -> None:
    where = tmp_path / "run", tmp_path / "cache", "64_64_64,64_72_80"
    search = hasty.search(*where, "search.kernels=2", "search.generation=1")
    evaluate = hasty.evaluate(*where)
    for command, number in ((search, signal.SIGINT), (evaluate, signal.SIGTERM)):
        with Piped(*command) as run:
            assert wait_for(lambda run=run: {"runner", "cc1plus"} & names(below(run.process.pid)), 120)
            assert f"cudal2: stopped by {number.name}; " in run.stopped_by(number)
        hasty.succeeds(command)
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert len(list(archive.samples())) == 4
    assert len((tmp_path / "run/eval/results.csv").read_text().splitlines()) > 2


@pytest.mark.slow
def test_polishing_stops_and_goes_on(tmp_path) -> None:
    needs_toolkit()
    kernel = (Path(__file__).parent / "worker/cuda/kernels/mma.cu").read_text()
    problems = Problem(64, 64, 64), Problem(128, 128, 128), Problem(256, 256, 256)
    with Archive.of(tmp_path) as archive:
        for one in (Candidate(kernel, problem, "sm_90a") for problem in problems):
            archive.add(specimens.verdict(one), one, None)
    command = ["-m", "cudal2.cli", "sass", "polish", tmp_path, "jobs=2", "search.method=random"]
    with Piped(*command, "search.measurements=1000000") as run:
        assert wait_for(lambda: len(list(tmp_path.glob("sass/*/random/metrics.jsonl"))) == 2, 120)
        time.sleep(1)
        assert "cudal2: stopped by SIGINT; " in run.stopped_by(signal.SIGINT)
    known = {path: path.read_bytes() for path in tmp_path.glob("sass/*/random/journal.jsonl")}
    hasty.succeeds([*command, "search.measurements=2"])
    assert len(list(tmp_path.glob("sass/*/compare.json"))) == 3
    assert len(known) == 2 and all(path.read_bytes() == text for path, text in known.items() if text.endswith(b"\n"))


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "stage"), some([(100_000, "drawing"), (120, "training")], 2))
def test_supervised_training_stops(tmp_path, samples, stage) -> None:
    tiny = ["epochs=100", "batch_size=8", "hidden=32", "layers=1", "heads=2", "verify=0", "context=1024"]
    with Piped("-m", "cudal2.cli", "sft", f"run={tmp_path}", f"samples={samples}", *tiny) as run:
        if stage == "drawing":
            assert wait_for(lambda: len(below(run.process.pid)) > 1, 120)
            time.sleep(1)  # some results are under way
        else:
            assert wait_for(lambda: read_metrics(tmp_path / "metrics.jsonl"), 120)
        assert "cudal2: stopped by SIGTERM; " in run.stopped_by(signal.SIGTERM)


@pytest.mark.parametrize(("presses", "patience"), [(2, 600), (1, 1)])
def test_a_main_thread_that_hears_nothing_is_ended_all_the_same(tmp_path, presses, patience) -> None:
    """As in a library's call that does not return: upon the second signal, or after some time."""
    program = tmp_path / "deaf.py"
    program.write_text(
        "import sys, ctypes\n"
        "from cudal2 import interrupt\n"
        "interrupt.PATIENCE = float(sys.argv[1])\n"
        "interrupt.install()\n"
        "print('ready', flush=True)\n"
        "mutex = ctypes.create_string_buffer(64)\n"
        "while True: ctypes.CDLL(None).pthread_mutex_lock(mutex)\n"  # the second time it waits for itself
    )
    with Piped(program, patience) as run:
        assert run.process.stdout.readline() == "ready\n"
        for _ in range(presses):
            time.sleep(0.5)
            run.process.send_signal(signal.SIGINT)
        assert run.process.communicate(timeout=SECONDS)[0] == "cudal2: stopped at once\n"
        assert run.process.returncode == 130


@pytest.fixture
def start(tmp_path, kind):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    started = []

    def parent(*sources: str) -> subprocess.Popen:
        command = [sys.executable, script, tmp_path / "cache", kind, *sources]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
        return started[-1]

    yield parent
    for process in started:
        process.kill()
        process.communicate()


def all_gone(parent: subprocess.Popen, pids: list[int]) -> bool:
    parent.kill()
    parent.wait()
    return wait_for(lambda: not names(pids), 5) and parent.stdout.read() == ""  # and nobody holds the pipe


@pytest.mark.sampled(2)
def test_nothing_outlives_a_killed_parent_that_was_idle(start) -> None:
    """The vendor's process is stopped then, as always between batches."""
    parent = start(NAIVE)
    assert parent.stdout.readline() == "ok\n"
    pids = below(parent.pid)
    assert len(pids) >= 2  # the pool's process and the baselines'
    assert all_gone(parent, pids)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("source", "program"), [(BUSY_COMPILER, "cc1plus"), (ENDLESS, "runner")])
def test_nothing_outlives_a_killed_parent_in_the_middle(start, source, program) -> None:
    parent = start(source)
    assert wait_for(lambda: program in names(below(parent.pid)))
    assert all_gone(parent, below(parent.pid))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", [ENDLESS, pytest.param(BUSY_COMPILER, marks=pytest.mark.slow)])
def test_a_worker_that_is_told_to_leave_takes_all_with_it_and_caches_no_verdict(start, tmp_path, source) -> None:
    parent = start(source)
    program = "runner" if source is ENDLESS else "cc1plus"
    assert wait_for(lambda: program in names(below(parent.pid)))
    worker = next(pid for pid in children(parent.pid) if children(pid))
    pids = below(worker)
    parent.send_signal(signal.SIGSTOP)  # so that it starts no other
    os.kill(worker, signal.SIGTERM)
    assert wait_for(lambda: not names([worker, *pids]), 5)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert not [path for path in kept if b'"status"' in path.read_bytes()]
    assert (source is ENDLESS) == any(path.parts[-3] == "builds" for path in kept)


@pytest.fixture
def executor() -> Iterator[ProcessPool]:
    with ProcessPool(1, get_context("spawn"), leave_with_parent) as executor:
        yield executor


def test_processes_are_ended_while_a_thread_that_waited_for_one_shuts_them_down(executor, monkeypatch):
    closed = list[int]()

    def slowly(connection: Connection) -> None:
        closed.append(connection.fileno())
        os.close(connection.fileno())
        if threading.current_thread() is threading.main_thread():
            time.sleep(1)  # meanwhile the other one comes to the same line

    def waits() -> None:
        with suppress(BrokenProcessPool):
            executor.submit(time.sleep, 60).result()
        executor.shutdown(cancel_futures=True)

    assert executor.submit(os.getpid).result()
    thread = threading.Thread(target=waits)
    thread.start()
    monkeypatch.setattr(Connection, "_close", slowly)
    end(executor)
    thread.join()
    assert closed and len(set(closed)) == len(closed)


def test_nobody_waits_for_the_rest_of_a_result_whose_sender_is_dead(executor):
    with pytest.raises(BrokenProcessPool):
        executor.submit(_sends_half).result(30)


def _sends_half() -> None:
    """Writes the length of a result and some of its bytes, and dies."""
    [results] = [one for one in gc.get_objects() if isinstance(one, SimpleQueue)]
    os.write(results._writer.fileno(), struct.pack("!i", 100) + b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
