"""Workers in processes of their own, one for each device: many candidates at once, timing one at a time on each.

The trainer's process keeps its threads and its memory to itself, and the death of the worker's process (or of
anything below it, or of the machine that it runs on, where there are others) costs a retry, not a run.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import suppress

import msgspec

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, HarnessFault, Verdict
from cudal2.target import find
from cudal2.worker.pool import processes
from cudal2.worker.pool.processes import Fleet, Lost, Slot

log = logging.getLogger(__name__)

TRIES = 3
"""How often a fault of the harness is tried again before the candidate is given up."""

CHOICE = 64
"""What is judged next is chosen among so many: they are built in this order, and each choice sends their sources."""


class Pool:
    """Evaluates candidates for one target in worker processes, started on first use and again when they die.

    A processor has one; GPUs have one each (`worker.devices`), and each gets its shard of the candidates. With
    `worker.executor=ray` these are the GPUs, or the processors, of a cluster's nodes. Use as a context manager. `fault`
    is the last HarnessFault that cost a candidate its verdict, or None.
    """

    def __init__(self, config: WorkerConfig, target: str = "cpu") -> None:
        self.config, self.target = config, target
        self.fault: HarnessFault | None = None
        self._fleet = _fleet(config, target)
        self._executors: dict[Slot, Executor] = {}
        self._starting = threading.Lock()
        self._leave = threading.Event()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._kill(*self._executors)
        self.close()

    def _kill(self, *slots: Slot) -> None:
        """Nobody waits for what is under way there: compilers with a queue before them, a kernel that does not end."""
        self._fleet.end(*filter(None, map(self._executors.get, slots)))

    def close(self) -> None:
        """End the worker processes."""
        for slot in list(self._executors):
            self._drop(slot)
        self._fleet.close()

    def _drop(self, slot: Slot) -> None:
        executor = self._executors.pop(slot, None)
        if executor:
            executor.shutdown(cancel_futures=True)

    @property
    def width(self) -> int:
        """How many candidates are judged at a time, as things stand."""
        return len(self._fleet.slots())

    def environment(self) -> Environment:
        """Where verdicts are reached. Raises HarnessFault where the worker cannot start at all."""
        for _ in range(TRIES):
            slot = self._fleet.slots()[0]
            try:
                return self._retry(slot, processes.environment)
            except Lost as lost:
                self._drop(slot)
                fault = _fault(lost)
        raise fault

    def ahead(self, candidates: Sequence[Candidate]) -> None:
        """Start to build what `evaluate` will be asked for later, and return at once.

        Of several devices of this machine the first one's process builds; the others find it in the cache, which the
        nodes of a cluster do not share. A fault shows in `evaluate`, too.
        """
        if self.config.executor == "processes" and self._executors:
            with suppress(BrokenExecutor):
                self._submit(next(iter(self._executors)), processes.begin, list(candidates))

    def evaluate(
        self,
        candidates: Sequence[Candidate],
        progress: Callable[[Candidate, Verdict | None], None] = lambda candidate, verdict: None,
    ) -> list[Verdict | None]:
        """One verdict for each candidate, in order; equal candidates are judged once.

        None marks a candidate whose verdict the harness failed to reach in TRIES tries (`fault` says why).
        `progress` is called with each candidate and its verdict as that becomes known, one at a time. What it raises
        ends the evaluation at once, as Ctrl-C does. What a slot had to do that got lost is dealt out once more among
        those that are there then; raises HarnessFault where none is left.
        """
        left = list(dict.fromkeys(candidates))
        found: dict[Candidate, Verdict | None] = {}
        losses: Counter[Candidate] = Counter()
        last: list[HarnessFault] = []
        one_at_a_time = threading.Lock()

        def know(candidate: Candidate, verdict: Verdict | None) -> None:
            with one_at_a_time:
                if self._leave.is_set():
                    return
                if verdict is None:
                    log.error("no verdict: %s", self.fault)
                found[candidate] = verdict
                progress(candidate, verdict)

        def judge(slot: Slot, assigned: list[Candidate]) -> None:
            under_way: Candidate | None = None
            try:
                builder = self._build(slot, assigned)
                while assigned and not self._leave.is_set():
                    if builder and builder is not self._executors.get(slot):  # it is gone, with all it had to build
                        builder = self._build(slot, assigned)
                    candidate = assigned[0]
                    try:
                        candidate = self._retry(slot, processes.ready, assigned[:CHOICE])
                        under_way = candidate
                        verdict = self._retry(slot, processes.judge, candidate)
                    except HarnessFault as error:
                        self.fault, verdict = error, None
                    under_way = None
                    assigned.remove(candidate)
                    know(candidate, verdict)
            except Lost as lost:
                self._drop(slot)
                if self._leave.is_set():
                    return
                log.warning("%s; what it had to judge is judged elsewhere", lost)
                last.append(_fault(lost))
                if under_way is not None:
                    losses[under_way] += 1
                    if losses[under_way] == TRIES:
                        self.fault = last[-1]
                        know(under_way, None)

        rounds = 0
        while left:  # where there is nothing to judge, no process is started for it
            slots = self._fleet.slots()
            self._together(judge, [one for one in zip(slots, shard(left, len(slots))) if one[1]])
            before, left = left, [candidate for candidate in left if candidate not in found]
            rounds = rounds + 1 if left == before else 0
            if rounds == TRIES:  # slots that get lost before they judge anything
                raise last[-1]
        return [found[candidate] for candidate in candidates]

    def _together(self, judge: Callable, shards: Sequence[tuple[Slot, list[Candidate]]]) -> None:
        """Every shard in a thread of its own; what one of them raises ends all, as Ctrl-C does."""
        try:
            with ThreadPoolExecutor(len(shards)) as threads:
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

    def _build(self, slot: Slot, candidates: Sequence[Candidate]) -> Executor | None:
        """Have a slot's process build these ahead of their judgement: that process, or None where it cannot."""
        try:
            self._retry(slot, processes.build, candidates)
        except HarnessFault as fault:  # each candidate meets it again, and alone
            log.warning("%s", fault)
            return None
        return self._executors.get(slot)

    def _retry(self, slot: Slot, function: Callable, *arguments):
        """The function's result from a slot's worker process, over a few tries; then the fault is raised."""
        if slot not in self._executors:
            self._fleet.check()  # no try mends a machine without a jail, a compiler or a GPU
        for attempt in range(1, TRIES + 1):
            try:
                return self._submit(slot, function, *arguments).result()
            except BrokenExecutor as error:
                self._drop(slot)
                fault = HarnessFault("the worker process died", "Look at the messages above; is there enough memory?")
                fault.__cause__ = error
            except _Interrupted:
                raise
            except HarnessFault as error:
                fault = error
                if find(self.target).devices:  # its context may be spoilt
                    self._kill(slot)
                    self._drop(slot)
            if attempt < TRIES and not self._leave.is_set():
                log.warning("%s; trying again (%d of %d)", fault, attempt, TRIES)
                time.sleep(0.2 * attempt)
        raise fault

    def _submit(self, slot: Slot, function: Callable, *arguments) -> Future:
        with self._starting:  # no process starts once all are told to leave
            if self._leave.is_set():
                raise _Interrupted("the evaluation was interrupted", "Start it again to continue")
            if slot not in self._executors:
                self._executors[slot] = self._fleet.start(slot)
            return self._executors[slot].submit(function, *arguments)


class _Interrupted(HarnessFault):
    """Nobody waits for the rest any more: no fault that another try could mend."""


def _fault(lost: Lost) -> HarnessFault:
    return HarnessFault(str(lost), "Look at the log there; is there enough memory?")


def _fleet(config: WorkerConfig, target: str) -> Fleet:
    if config.executor == "ray":
        from cudal2.worker.pool.cluster import Cluster

        return Cluster(config, target)
    return processes.Processes(config, target)


def check(config: WorkerConfig, target: str) -> None:
    """Raises HarnessFault where no worker could start; makes no GPU context in this process.

    Raises ValueError where `worker.devices` names a GPU that cannot be seen.
    """
    _fleet(config, target).check()


def on_all(config: WorkerConfig, target: str) -> WorkerConfig:
    """The worker on every GPU that can be seen; a processor's, or a cluster's, as it is.

    Raises HarnessFault where there is no GPU.
    """
    if not find(target).devices or config.executor != "processes":
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
