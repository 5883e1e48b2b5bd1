"""A Worker in a process of its own: many candidates at once, builds side by side, timing one at a time.

The trainer's process keeps its threads and its memory to itself, and the death of the worker's process (or of
anything below it) costs a retry, not a run.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from cudal2.config import WorkerConfig
from cudal2.records import Candidate, Environment, HarnessFault, Verdict
from cudal2.worker.worker import Worker

log = logging.getLogger(__name__)

TRIES = 3
"""How often a fault of the harness is tried again before the candidate is given up."""

_worker: Worker | None = None  # lives in the pool's process only


def _start(config: WorkerConfig, parent: int) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    _worker = Worker(config)


def _leave_with(parent: int) -> None:
    """A parent that was killed cannot say goodbye; do not outlive it."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _started() -> Worker:
    assert _worker is not None
    return _worker


def _environment() -> Environment:
    return _started().environment


def _build(candidates: list[Candidate]) -> None:
    """Compile what has no verdict yet, on as many cores as allowed; the results are in the cache."""
    worker = _started()
    new = [candidate for candidate in candidates if worker.recall(candidate) is None]
    jobs = worker.config.build_jobs or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(worker.build, new))


def _judge(candidate: Candidate) -> Verdict:
    return _started().evaluate(candidate)


class Pool:
    """Evaluates candidates in a worker process that is started on first use and again when it dies.

    Use as a context manager. `fault` is the last HarnessFault that cost a candidate its verdict, or None.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.fault: HarnessFault | None = None
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker process."""
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def environment(self) -> Environment:
        """Where verdicts are reached. Raises HarnessFault where the worker cannot start at all."""
        return self._insist(_environment)

    def evaluate(
        self, candidates: Sequence[Candidate], progress: Callable[[Verdict | None], None] = lambda _: None
    ) -> list[Verdict | None]:
        """One verdict for each candidate, in order; equal candidates are judged once.

        None marks a candidate whose verdict the harness failed to reach in TRIES tries (`fault` says why).
        `progress` is called with each as it becomes known.
        """
        distinct = list(dict.fromkeys(candidates))
        try:
            self._insist(_build, distinct)
        except HarnessFault as fault:  # each candidate meets it again below, and alone
            log.warning("%s", fault)
        found: dict[Candidate, Verdict | None] = {}
        for candidate in distinct:
            try:
                found[candidate] = self._insist(_judge, candidate)
            except HarnessFault as fault:
                log.error("no verdict: %s", fault)
                self.fault, found[candidate] = fault, None
            progress(found[candidate])
        return [found[candidate] for candidate in candidates]

    def _insist(self, function: Callable, *arguments):
        """The function's result from the worker process, over a few tries; then the fault is raised."""
        for attempt in range(1, TRIES + 1):
            try:
                return self._submit(function, *arguments).result()
            except BrokenProcessPool as error:
                self.close()
                fault = HarnessFault("the worker process died", "Look at the messages above; is there enough memory?")
                fault.__cause__ = error
            except HarnessFault as error:
                fault = error
            if attempt < TRIES:
                log.warning("%s; trying again (%d of %d)", fault, attempt, TRIES)
                time.sleep(0.2 * attempt)
        raise fault

    def _submit(self, function: Callable, *arguments) -> Future:
        if self._executor is None:
            # A broken configuration (no jail, no compiler) is reported here, not as a dead process.
            Worker(self.config).close()
            self._executor = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=_start, initargs=(self.config, os.getpid())
            )
        return self._executor.submit(function, *arguments)
