"""Workers in processes of their own, one for each device: many candidates at once, timing one at a time on each.

The trainer's process keeps its threads and its memory to itself, and the death of the worker's process (or of
anything below it) costs a retry, not a run.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import takewhile
from multiprocessing import get_context

import msgspec

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, HarnessFault, Verdict
from cudal2.target import find
from cudal2.worker.lifetime import end, leave_with_parent
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

log = logging.getLogger(__name__)

TRIES = 3
"""How often a fault of the harness is tried again before the candidate is given up."""

CHOICE = 64
"""What is judged next is chosen among so many: they are built in this order, and each choice sends their sources."""

_worker: Worker | None = None  # lives in the pool's process only


def _start(config: WorkerConfig, target: str, device: int | None) -> None:
    global _worker
    leave_with_parent()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = _visible(device)
    _worker = Worker(config, target)


def _visible(device: int) -> str:
    """The name of the device-th GPU among those that this process may see, as worker.devices counts them.

    Raises ValueError where CUDA_VISIBLE_DEVICES shows fewer; where it is unset only the driver knows (see `check`).
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return str(device)
    # CUDA reads the list up to the first name that names nothing.
    shown = list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, names.split(","))))
    _among(device, len(shown))
    return shown[device]


@contextmanager
def alone(device: int) -> Iterator[None]:
    """Meanwhile the device-th GPU is the only one that can be seen, as number 0: here, where none was opened before,
    and in processes that are started. Raises ValueError where CUDA_VISIBLE_DEVICES shows fewer.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = _visible(device)
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def _among(device: int, count: int) -> None:
    if device >= count:
        raise ValueError(
            f"worker.devices names GPU {device}, but only {count} can be seen here; they are counted from 0 among "
            "those that CUDA_VISIBLE_DEVICES shows: name others in worker.devices, or show more"
        )


def _started() -> Worker:
    assert _worker is not None
    return _worker


def _environment() -> Environment:
    return _started().environment


def _build(candidates: list[Candidate]) -> None:
    _started().build_ahead(candidates)


def _begin(candidates: list[Candidate]) -> None:
    _started().begin_building(candidates)


def _ready(candidates: list[Candidate]) -> Candidate:
    return _started().ready(candidates)


def _judge(candidate: Candidate) -> Verdict:
    return _started().evaluate(candidate)


class Pool:
    """Evaluates candidates for one target in worker processes, started on first use and again when they die.

    A processor has one; GPUs have one each (`worker.devices`), and each gets its shard of the candidates. Use as a
    context manager. `fault` is the last HarnessFault that cost a candidate its verdict, or None.
    """

    def __init__(self, config: WorkerConfig, target: str = "cpu") -> None:
        self.config, self.target = config, target
        self.fault: HarnessFault | None = None
        self.devices: tuple[int | None, ...] = config.devices if find(target).kind == "cuda" else (None,)
        self._executors: dict[int | None, ProcessPoolExecutor] = {}
        self._starting = threading.Lock()
        self._leave = threading.Event()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._kill(*self._executors)
        self.close()

    def _kill(self, *devices: int | None) -> None:
        """Nobody waits for what is under way there: compilers with a queue before them, a kernel that does not end."""
        end(*filter(None, map(self._executors.get, devices)))

    def close(self) -> None:
        """End the worker processes."""
        for device in list(self._executors):
            self._drop(device)

    def _drop(self, device: int | None) -> None:
        executor = self._executors.pop(device, None)
        if executor:
            executor.shutdown(cancel_futures=True)

    def environment(self) -> Environment:
        """Where verdicts are reached. Raises HarnessFault where the worker cannot start at all."""
        return self._retry(self.devices[0], _environment)

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Start to build what `evaluate` will be asked for later, and return at once.

        Of several devices the first one's process builds; the others find it in the cache. A fault shows there too.
        """
        if self.devices[0] in self._executors:
            with suppress(BrokenProcessPool):
                self._submit(self.devices[0], _begin, list(candidates))

    def evaluate(
        self,
        candidates: Sequence[Candidate],
        progress: Callable[[Candidate, Verdict | None], None] = lambda candidate, verdict: None,
    ) -> list[Verdict | None]:
        """One verdict for each candidate, in order; equal candidates are judged once.

        None marks a candidate whose verdict the harness failed to reach in TRIES tries (`fault` says why).
        `progress` is called with each candidate and its verdict as that becomes known, one at a time. What it raises
        ends the evaluation at once, as Ctrl-C does.
        """
        distinct = list(dict.fromkeys(candidates))
        found: dict[Candidate, Verdict | None] = {}
        one_at_a_time = threading.Lock()

        def judge(device: int | None, assigned: list[Candidate]) -> None:
            try:
                self._retry(device, _build, assigned)
            except HarnessFault as fault:  # each candidate meets it again below, and alone
                log.warning("%s", fault)
            while assigned:
                candidate = assigned[0]
                try:
                    candidate = self._retry(device, _ready, assigned[:CHOICE])
                    verdict = self._retry(device, _judge, candidate)
                except HarnessFault as error:
                    self.fault, verdict = error, None
                with one_at_a_time:
                    if self._leave.is_set():
                        return
                    if verdict is None:
                        log.error("no verdict: %s", self.fault)
                    assigned.remove(candidate)
                    found[candidate] = verdict
                    progress(candidate, verdict)

        # Where there is nothing to judge, no process is started for it.
        shards = [one for one in zip(self.devices, shard(distinct, len(self.devices))) if one[1]]
        try:
            with ThreadPoolExecutor(len(self.devices)) as threads:
                try:
                    for done in as_completed([threads.submit(judge, *one) for one in shards]):
                        done.result()
                except BaseException:
                    with self._starting:
                        self._leave.set()
                    self._kill(*self._executors)
                    raise
        finally:
            self._leave.clear()
        return [found[candidate] for candidate in candidates]

    def _retry(self, device: int | None, function: Callable, *arguments):
        """The function's result from a device's worker process, over a few tries; then the fault is raised."""
        if device not in self._executors:
            check(self.config, self.target)  # no try mends a machine without a jail, a compiler or a GPU
        for attempt in range(1, TRIES + 1):
            try:
                return self._submit(device, function, *arguments).result()
            except BrokenProcessPool as error:
                self._drop(device)
                fault = HarnessFault("the worker process died", "Look at the messages above; is there enough memory?")
                fault.__cause__ = error
            except _Interrupted:
                raise
            except HarnessFault as error:
                fault = error
                if device is not None:  # its context may be spoilt
                    self._kill(device)
                    self._drop(device)
            if attempt < TRIES and not self._leave.is_set():
                log.warning("%s; trying again (%d of %d)", fault, attempt, TRIES)
                time.sleep(0.2 * attempt)
        raise fault

    def _submit(self, device: int | None, function: Callable, *arguments) -> Future:
        with self._starting:  # no process starts once all are told to leave
            if self._leave.is_set():
                raise _Interrupted("the evaluation was interrupted", "Start it again to continue")
            if device not in self._executors:
                self._executors[device] = ProcessPoolExecutor(
                    1,
                    mp_context=get_context("spawn"),
                    initializer=_start,
                    initargs=(self.config, self.target, device),
                )
            return self._executors[device].submit(function, *arguments)


class _Interrupted(HarnessFault):
    """Nobody waits for the rest any more: no fault that another try could mend."""


def on_all(config: WorkerConfig, target: str) -> WorkerConfig:
    """The worker on every GPU that can be seen; a processor's as it is. Raises HarnessFault where there is no GPU."""
    if find(target).kind != "cuda":
        return config
    from cudal2.worker.cuda import device

    return msgspec.structs.replace(config, devices=tuple(range(device.count())))


def shard(candidates: Sequence[Candidate], count: int) -> list[list[Candidate]]:
    """The candidates in `count` shards, one for each device, as equal as may be: a problem stays on one device, which
    makes its buffers and tunes its baselines once, unless it alone is more than a shard.
    """
    most = -(-len(candidates) // count)
    by_problem: dict[Problem, list[Candidate]] = {}
    for candidate in candidates:
        by_problem.setdefault(candidate.problem, []).append(candidate)
    pieces = [same[start : start + most] for same in by_problem.values() for start in range(0, len(same), most)]
    shards: list[list[Candidate]] = [[] for _ in range(count)]
    for piece in pieces:
        min(shards, key=len).extend(piece)
    return shards


def check(config: WorkerConfig, target: str) -> None:
    """Raises HarnessFault where a worker could not start here; makes no GPU context in this process.

    Raises ValueError where `worker.devices` names a GPU that cannot be seen.
    """
    if find(target).kind == "cuda":
        from cudal2.worker.cuda import device
        from cudal2.worker.cuda.compile import toolchain

        for number in config.devices:
            _visible(number)
        jail.choose(config.jail, system=True)
        toolchain.find()
        device.find()
        for number in config.devices:
            _among(number, device.count())
    else:
        Worker(config, target).close()
