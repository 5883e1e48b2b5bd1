"""`Worker.evaluate`: one candidate in, one verdict out, and never the same work twice."""

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path

import msgspec

from cudal2.completion import SourceRejected, check_source
from cudal2.config import WorkerConfig
from cudal2.contract import ENTRY
from cudal2.lexing import visible
from cudal2.problem import Problem
from cudal2.records import (
    CLOCKED,
    Candidate,
    Environment,
    HarnessFault,
    Status,
    Timing,
    Verdict,
    digest,
    plain,
    to_json,
    verdict_from_json,
)
from cudal2.target import find
from cudal2.worker.backend import (
    Launchable,
    NotPortable,
    Portable,
    Prepared,
    Uncountable,
    Uncounted,
    backend_of,
    device_lock,
    right_rows,
)
from cudal2.worker.cache import Cache, verdict_key
from cudal2.worker.outcome import Outcome
from cudal2.worker.timing import ReadFloor

log = logging.getLogger(__name__)


class Worker:
    """Judges candidates for one target: this machine's processor, or its first visible GPU.

    Raises HarnessFault, from any method, where the harness fails; what is wrong with a candidate is its verdict.
    Use it as a context manager: leaving it ends the processes it keeps. ValueError for a config of other machines.
    """

    def __init__(self, config: WorkerConfig, target: str = "cpu") -> None:
        if config.executor != "processes":
            raise ValueError(f"this is measured on this machine alone; leave worker.executor={config.executor} out")
        self.config, self.target = config, find(target)
        self.cache = Cache(Path(config.cache).expanduser())
        self.backend = backend_of(self.target, config, self.cache)
        self._ahead: dict[Candidate, Future[Prepared]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._countable = True
        self._checker: Worker | None = None
        self._checking = threading.Lock()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and thread; the worker may be used again."""
        if self._threads:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        self._ahead.clear()
        self.backend.close()
        if self._checker:
            self._checker.close()
            self._checker = None

    @property
    def environment(self) -> Environment:
        """Where verdicts are reached."""
        return self.backend.environment

    def key(self, candidate: Candidate) -> str:
        """Under which a verdict is cached: candidate, environment, how hard we look, and what its operator is."""
        return verdict_key(candidate, self.environment.fingerprint, self.config)

    def recall(self, candidate: Candidate) -> Verdict | None:
        """The verdict reached earlier on this candidate here, if any; none that a clock decided."""
        return self._recall(self.key(candidate))

    def _recall(self, key: str) -> Verdict | None:
        stored = self.cache.read("verdicts", key)
        if stored is None:
            return None
        return msgspec.structs.replace(verdict_from_json(stored), cached=True, seconds={})

    def build(self, candidate: Candidate) -> Prepared:
        """Check the source and prepare it for `measure`; a refusal is a Prepared with its status."""
        if candidate.target != self.target.name:
            raise ValueError(f"a candidate for {candidate.target} was given to a worker for {self.target.name}")
        if not candidate.source.strip():
            return Prepared(Status.NO_SOURCE, candidate.missing or f"nothing defines {ENTRY}: the source is empty")
        candidate = msgspec.structs.replace(candidate, source=visible(candidate.source))  # as the compiler sees it
        try:
            check_source(candidate.source, self.target, self.backend.foreign_headers(candidate))
        except SourceRejected as rejected:
            return Prepared(Status.REJECTED, str(rejected), log=plain(str(rejected)))
        if not self.backend.exclusive_builds:
            return self.backend.prepare(candidate)
        with device_lock(exclusive=False):
            return self.backend.prepare(candidate)

    def portable(self, candidate: Candidate, rows: Iterable[int] = ()) -> Portable:
        """What is exported of a candidate that was found to be ok, for its own number of rows and for those of `rows`
        about it at which the same checks find it right, too.

        Raises NotPortable where its launches depend on its own host code, HarnessFault where it no longer compiles.
        """
        prepared = self.build(candidate)
        if prepared.status is not Status.OK or prepared.launchable is None:
            raise HarnessFault(
                f"a kernel verified for {candidate.problem.name} no longer compiles: {prepared.reason}",
                "Has the compiler changed? Evaluate again, then export",
            )
        return self.backend.portable(candidate, prepared.launchable, right_rows(candidate, rows, self._right))

    def _right(self, candidate: Candidate) -> Launchable | None:
        """What is launched of a candidate that passes all checks of a verdict, untimed; None if not."""
        prepared = self.build(candidate)
        if prepared.status is not Status.OK or prepared.launchable is None:
            return None
        with self._checking:
            if self._checker is None:
                self._checker = Worker(msgspec.structs.replace(self.config, protocols=()), self.target.name)
            outcome = self._checker.measure(prepared.launchable, candidate.problem)
        return prepared.launchable if outcome.status is Status.OK else None

    def build_ahead(self, candidates: Sequence[Candidate]) -> None:
        """Build what has no verdict yet, and nothing else from now on, on as many cores as allowed.

        Returns at once where building disturbs no measurement, else when all is built: compilers are in the way of
        what runs on a processor, and of calls that are timed on the host's clock.
        """
        wanted = set(candidates)  # what was built for others stays in the cache alone
        self._ahead = {one: future for one, future in self._ahead.items() if one in wanted}
        self.begin_building(candidates)
        if self.backend.exclusive_builds or not {"offline", "server"}.isdisjoint(self.config.protocols):
            for future in self._ahead.values():
                future.exception()  # raised again where its candidate is judged

    def begin_building(self, candidates: Sequence[Candidate]) -> None:
        """Start to build what has no verdict yet and will be asked for with others; nothing is measured meanwhile."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.config.build_jobs or len(os.sched_getaffinity(0)))
        new = [one for one in dict.fromkeys(candidates) if one not in self._ahead and self.recall(one) is None]
        # One source for several problems is compiled once: no thread should wait for another that compiles it.
        first = {candidate.source: candidate for candidate in reversed(new)}
        for candidate in sorted(new, key=lambda candidate: first[candidate.source] is not candidate):
            self._ahead[candidate] = self._threads.submit(self.build, candidate)

    def ready(self, candidates: Sequence[Candidate]) -> Candidate:
        """Of these, one that is built or needs no building; where all are being built, the first that is done.

        Whoever judges many asks this, so that the device does not wait for a compiler that takes a minute.
        """
        ahead = {self._ahead[one]: one for one in candidates if one in self._ahead}
        if len(ahead) < len(candidates):
            return next(one for one in candidates if one not in self._ahead)
        done = wait(ahead, return_when=FIRST_COMPLETED).done
        return next(one for future, one in ahead.items() if future in done)

    def measure(self, launchable: Launchable, problem: Problem) -> Outcome:
        """Check and time what `build` made, when the device is free; nothing is recalled or remembered."""
        waited = time.perf_counter()
        with device_lock(exclusive=bool(self.config.protocols), name=self.backend.lock):
            waited = time.perf_counter() - waited
            try:
                outcome = self.backend.measure(launchable, problem)
            except BaseException:
                self.backend.close()  # the next candidate gets fresh processes
                raise
        return msgspec.structs.replace(outcome, seconds={"wait": waited} | outcome.seconds)

    def evaluate(self, candidate: Candidate) -> Verdict:
        """Build and measure a candidate, or recall the verdict."""
        key = self.key(candidate)
        with self.cache.lock("verdicts", key):
            known = self._recall(key)
            if known:
                return self._counted(known, candidate)
            started = time.perf_counter()
            ahead = self._ahead.pop(candidate, None)
            prepared = ahead.result() if ahead else self.build(candidate)
            seconds = {"build": time.perf_counter() - started} | prepared.seconds
            outcome = Outcome(prepared.status, prepared.reason)
            if prepared.launchable:
                outcome = prepared.outcome(self.measure(prepared.launchable, candidate.problem))
            outcome = msgspec.structs.replace(outcome, reason=plain(outcome.reason))
            verdict = Verdict(
                key=key,
                problem=candidate.problem,
                target=candidate.target,
                environment=self.environment,
                machine=self.backend.machine,
                log=prepared.log,
                **{name: getattr(outcome, name) for name in outcome.__struct_fields__ if name != "seconds"},
                seconds=seconds | outcome.seconds,
            )
            if verdict.status not in CLOCKED:
                self.cache.write("verdicts", verdict.key, to_json(verdict).encode())
            return self._counted(verdict, candidate, prepared.launchable)

    def _counted(self, verdict: Verdict, candidate: Candidate, launchable: Launchable | None = None) -> Verdict:
        """With counters, where they are wanted and the candidate is ok: they are cached apart from verdicts."""
        if not (self.config.counters and verdict.ok):
            return verdict
        clock = time.perf_counter()
        found = self.counters(candidate, launchable)
        seconds = verdict.seconds if verdict.cached else verdict.seconds | {"counters": time.perf_counter() - clock}
        return msgspec.structs.replace(verdict, counters=found, seconds=seconds)

    def counters(self, candidate: Candidate, launchable: Launchable | None = None) -> dict[str, float]:
        """What the hardware counts in a call of a candidate that was found to be ok, by name (worker/cuda/counters.py).

        {} where that cannot be told, with the reason as a warning, once. Recalled where it was counted in this
        environment; what `build` made of the candidate may be handed in.
        """
        key = digest("counters", candidate.key, self.environment.fingerprint)
        with self.cache.lock("counters", key):
            if (stored := self.cache.read("counters", key)) is not None:
                return msgspec.json.decode(stored, type=dict[str, float])
            if not self._countable:
                return {}
            try:
                made = self.backend.portable(candidate, launchable) if launchable else self.portable(candidate)
            except NotPortable:
                _tell("a kernel's launches depend on its own host code")
                return {}
            except HarnessFault as fault:
                _tell(str(fault))
                return {}
            found = self.count(made, candidate.problem)
            if found:
                self.cache.write("counters", key, msgspec.json.encode(found))
            return found

    def count(self, portable: Portable, problem: Problem) -> dict[str, float]:
        """`counters` of what was found to be ok elsewhere, when the device is free; nothing is recalled or cached."""
        try:
            return self.backend.counters(portable, problem)
        except (Uncounted, HarnessFault, OSError) as error:
            self._countable = not isinstance(error, Uncountable)
            _tell(str(error))
            return {}

    def baseline_seconds(self, problem: Problem, protocol: str = "device") -> dict[str, float]:
        """Seconds a call of each baseline of the vendor at its best under a protocol, by name.

        Raises ValueError for a protocol that the target does not know.
        """
        with device_lock(exclusive=True, name=self.backend.lock):
            return self.backend.baseline_seconds(problem, protocol)

    def compare_baseline_with_itself(self, problem: Problem, protocol: str = "device") -> Timing:
        """A/A: the fastest baseline timed as a candidate would be under a protocol; an honest harness finds 1.00.

        Raises ValueError for a protocol that the target does not know.
        """
        with device_lock(exclusive=True, name=self.backend.lock):
            return self.backend.compare_baseline_with_itself(problem, protocol)

    def read_floor(self, problem: Problem) -> ReadFloor:
        """How long only reading a problem's operands takes, beside the baselines. ValueError where that is unknown."""
        with device_lock(exclusive=True, name=self.backend.lock):
            return self.backend.read_floor(problem)


@cache
def _tell(reason: str) -> None:
    """Once in each process: every further kernel has the same reason."""
    log.warning("no hardware counters: %s", reason)
