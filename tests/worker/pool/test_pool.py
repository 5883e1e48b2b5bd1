"""Candidates are dealt out to the GPUs, a worker process each; see test_worker.py for the processor's."""

import os
import signal
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from pathlib import Path
from typing import ClassVar

import pytest
import specimens
import torch
from processes import below, names, wait_for
from transformers import TrainingArguments

from cudal2 import interrupt, operators
from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault
from cudal2.worker.pool import pool, processes
from cudal2.worker.pool.pool import Pool


class FakeExecutor:
    """Runs nothing; notes which device's process was asked to build and to judge what."""

    built: ClassVar[list[tuple[int, list[str]]]] = []
    judged: ClassVar[list[tuple[int, str]]] = []
    broken: ClassVar[set[int]] = set()

    def __init__(self, _workers, *, initargs, **_):
        self.device = initargs[2]
        self._processes: dict = {}
        self._result_queue = None

    def submit(self, function, *arguments) -> Future:
        future: Future = Future()
        if function is processes.judge:
            FakeExecutor.judged.append((self.device, arguments[0].source))
            if self.device in FakeExecutor.broken:
                FakeExecutor.broken.discard(self.device)
                future.set_exception(HarnessFault("the GPU is lost", "find it"))
                return future
            future.set_result(specimens.verdict(arguments[0]))
        elif function is processes.ready:
            future.set_result(arguments[0][0])
        else:
            if function is processes.build:
                FakeExecutor.built.append((self.device, [one.source for one in arguments[0]]))
            future.set_result(None)
        return future

    def shutdown(self, **_):
        pass


@pytest.fixture
def gpus(monkeypatch):
    FakeExecutor.built, FakeExecutor.judged, FakeExecutor.broken = [], [], set()
    monkeypatch.setattr(interrupt, "ProcessPool", FakeExecutor)
    monkeypatch.setattr(processes, "check", lambda *_: None)
    with Pool(WorkerConfig(devices=(0, 3)), "sm_90a") as pool_:
        yield pool_


def candidates(count: int) -> list[Candidate]:
    return [Candidate(str(number), Problem(64, 64, 64), "sm_90a") for number in range(count)]


def test_each_gpu_gets_its_shard_and_the_order_is_kept(gpus) -> None:
    wanted = candidates(5)
    found = gpus.evaluate([*wanted, wanted[0]])
    assert [verdict.key for verdict in found] == [candidate.key for candidate in [*wanted, wanted[0]]]
    assert sorted(FakeExecutor.judged) == [(0, "0"), (0, "1"), (0, "2"), (3, "3"), (3, "4")]


@pytest.mark.parametrize(
    ("counts", "devices"), [((8, 8, 8, 8), 2), ((3, 7, 1, 5, 4), 2), ((9,), 4), ((1, 1, 1), 2), ((5, 1), 3)]
)
def test_shards_are_equal_and_problems_stay_whole(counts: tuple[int, ...], devices: int) -> None:
    problems = [Problem(64, 64, 64 * (1 + number)) for number in range(len(counts))]
    wanted = [Candidate(str(i), p, "sm_90a") for p, count in zip(problems, counts) for i in range(count)]
    shards = pool.shard(wanted, devices)
    assert sorted(chain.from_iterable(shards), key=wanted.index) == wanted and len(shards) == devices
    most = -(-len(wanted) // devices)
    for problem, count in zip(problems, counts):
        on = [shard for shard in shards if any(one.problem == problem for one in shard)]
        assert len(on) <= -(-count // most)
    assert max(map(len, shards)) < min(map(len, shards)) + most + 1


def test_an_interrupted_pool_waits_for_no_kernel(tmp_path, request) -> None:
    """The pool can be used again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    patience = 600.0
    config = WorkerConfig(cache=str(tmp_path), run_seconds=patience)
    source = (Path(__file__).parents[1] / "kernels" / "loops_forever.cpp").read_text()
    with Pool(config) as busy:
        environment = busy.environment()

        def interrupt() -> None:
            assert wait_for(lambda: "runner" in names(below(os.getpid())))
            time.sleep(0.5)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            pytest.fail(f"ended by itself: {busy.evaluate([Candidate(source, Problem(64, 64, 64))])}")
        assert time.monotonic() - started < patience / 4
        assert busy.environment() == environment


def test_nothing_to_judge_is_no_error_and_starts_no_process(gpus) -> None:
    assert gpus.evaluate([]) == [] and not gpus._executors
    gpus.evaluate(candidates(1))
    assert list(gpus._executors) == [0]


def test_building_ahead_starts_no_process_and_survives_a_dead_one(gpus, monkeypatch) -> None:
    gpus.ahead(candidates(1))
    assert not gpus._executors
    gpus.evaluate(candidates(1))
    asked: list[object] = []

    def submit(self, function, *arguments) -> Future:
        asked.append(arguments[0])
        raise BrokenProcessPool

    monkeypatch.setattr(FakeExecutor, "submit", submit)
    gpus.ahead(candidates(2))
    assert asked == [candidates(2)]


def test_whoever_asks_for_all_gpus_gets_those_that_can_be_seen(monkeypatch) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    from cudal2.worker.cuda import device

    monkeypatch.setattr(device, "count", lambda: 4)
    plain = WorkerConfig(batch_ms=3)
    assert pool.on_all(plain, "sm_90a") == WorkerConfig(batch_ms=3, devices=(0, 1, 2, 3))
    assert pool.on_all(plain, "cpu") == plain


def test_a_lost_gpu_costs_a_retry_in_a_new_process(gpus) -> None:
    FakeExecutor.broken = {3}
    before = gpus.evaluate(candidates(2))
    assert all(before)
    assert FakeExecutor.judged.count((3, "1")) == 2
    assert FakeExecutor.judged.count((0, "0")) == 1


def test_a_new_process_builds_ahead_what_the_lost_one_had_to(gpus) -> None:
    """Or its compilers would work one at a time, each when its kernel is judged."""
    FakeExecutor.broken = {3}
    assert all(gpus.evaluate(candidates(6)))
    assert [one for one in FakeExecutor.built if one[0] == 3] == [(3, ["3", "4", "5"]), (3, ["4", "5"])]
    assert [one for one in FakeExecutor.built if one[0] == 0] == [(0, ["0", "1", "2"])]


def test_what_progress_raises_ends_the_evaluation_on_every_gpu(gpus, monkeypatch) -> None:
    """As Ctrl-C does: nobody waits for the rest."""
    submit = FakeExecutor.submit

    def slow(self, *arguments) -> Future:
        time.sleep(0.01 * (self.device == 3))
        return submit(self, *arguments)

    def interrupted(candidate: Candidate, _) -> None:
        if candidate.source == "0":
            raise KeyboardInterrupt

    monkeypatch.setattr(FakeExecutor, "submit", slow)
    with pytest.raises(KeyboardInterrupt):
        gpus.evaluate(candidates(400), interrupted)
    assert len(FakeExecutor.judged) < 200, "the other GPU went on to its end"


def test_names_of_visible_devices_are_kept(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert processes._visible(1) == "GPU-b"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert processes._visible(2) == "2"


@pytest.mark.parametrize(
    ("visible", "judging"), [(None, ["1", "2", "3"]), ("4,5,6,7", ["5", "6", "7"]), ("GPU-a,GPU-b,GPU-c,GPU-d", None)]
)
def test_some_gpus_judge_while_another_learns(monkeypatch, visible, judging) -> None:
    """Each worker process sees the one GPU that it was given, and the trainer's process goes on to see all."""
    from cudal2.train.options import one_gpu

    judging = judging or ["GPU-b", "GPU-c", "GPU-d"]
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    started: list[tuple] = []

    class Executor(FakeExecutor):
        def __init__(self, workers, *, initargs, **options):
            super().__init__(workers, initargs=initargs, **options)
            started.append(initargs)

    monkeypatch.setattr(interrupt, "ProcessPool", Executor)
    monkeypatch.setattr(processes, "check", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    arguments = TrainingArguments(use_cpu=False)
    assert one_gpu(arguments).n_gpu == 1 and arguments.device.index in (0, None)
    with Pool(WorkerConfig(devices=(1, 2, 3)), "sm_90a") as some:
        assert all(some.evaluate(candidates(6)))
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    monkeypatch.setattr(processes.interrupt, "leave_with_parent", lambda: None)
    monkeypatch.setattr(processes, "Worker", lambda *_: os.environ["CUDA_VISIBLE_DEVICES"])
    seen = []
    for initargs in sorted(started, key=lambda given: given[2]):
        with monkeypatch.context() as process:
            process.setattr(processes, "_worker", None)
            process.setattr(os, "environ", dict(os.environ))
            processes._start(*initargs)
            seen.append(processes._started())
    assert seen == judging


def test_a_process_of_other_code_than_the_command_began_with_judges_nothing(monkeypatch) -> None:
    monkeypatch.setattr(processes.interrupt, "leave_with_parent", lambda: None)
    monkeypatch.setattr(processes, "_worker", None)
    monkeypatch.setattr(processes, "_given", None)
    processes._start(WorkerConfig(), "cpu", None, "0.1.0+changed", list(operators.__path__))
    with pytest.raises(HarnessFault, match="have changed since"):
        processes.judge(candidates(1)[0])


@pytest.mark.parametrize(("shown", "count"), [("0", 1), ("", 0), ("-1", 0), ("GPU-a, GPU-b,-1,GPU-c", 2)])
def test_a_device_that_cannot_be_seen_is_named_before_anything_starts(monkeypatch, shown, count) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    for device in range(count):
        assert processes._visible(device) == shown.split(",")[device].strip()
    config = WorkerConfig(devices=(*range(count), count))
    with Pool(config, "sm_90a") as nowhere, pytest.raises(ValueError, match=f"GPU {count}, but only {count}"):
        nowhere.environment()


def test_a_gpu_is_seen_alone_only_meanwhile(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    for _ in range(2):
        with processes.alone(1):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with processes.alone(1):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_without_a_list_of_visible_devices_the_driver_counts_them(monkeypatch) -> None:
    from cudal2.worker.cuda import device
    from cudal2.worker.cuda.compile import toolchain

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for module, name in [(toolchain, "find"), (device, "find"), (processes.jail, "choose")]:
        monkeypatch.setattr(module, name, lambda *_, **__: None)
    monkeypatch.setattr(device, "count", lambda: 2)
    pool.check(WorkerConfig(devices=(0, 1)), "sm_90a")
    with pytest.raises(ValueError, match="GPU 2, but only 2"):
        pool.check(WorkerConfig(devices=(0, 2)), "sm_90a")


@pytest.mark.gpu
def test_the_driver_counts_what_can_be_seen() -> None:
    import torch

    from cudal2.worker.cuda import device

    if not device.available():
        pytest.skip("no NVIDIA GPU")
    assert device.count() == torch.cuda.device_count()
    pool.check(WorkerConfig(devices=tuple(range(device.count()))), device.find().target.name)


def test_a_machine_without_a_gpu_is_told_at_once() -> None:
    from cudal2.worker.cuda import device

    if device.available():
        pytest.skip("there is a GPU")
    with Pool(WorkerConfig(), "sm_90a") as nowhere, pytest.raises(HarnessFault, match="target=cpu"):
        nowhere.environment()
