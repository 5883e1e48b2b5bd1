"""How fast is an edited kernel beside the unedited one? Many edits a second of one parent, on one problem, on one GPU.

Nothing is compiled, and one runner serves many edits of its parent; what an edit could spoil is looked at before the
next is believed, and after any fault a fresh runner takes over. Edits are for whoever has proved them harmless: what
proves it is handed in, for this half of the program knows nothing of what instructions mean.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from statistics import median

import msgspec
import numpy as np
import torch

from cudal2 import operators
from cudal2.config import EffortConfig
from cudal2.problem import Problem
from cudal2.records import STRICT, Candidate, Edit, HarnessFault, Measured, Status
from cudal2.worker import measurement, timing
from cudal2.worker.backend import NotPortable, device_lock
from cudal2.worker.cuda import edit_pairs, plan, recipe, unsealing
from cudal2.worker.cuda.backend import CudaBackend
from cudal2.worker.cuda.bench import SUSPECT, ProblemContext, blame, fault
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.cuda.edit_pairs import Beside
from cudal2.worker.cuda.pairing import TimingContext
from cudal2.worker.gpu import buffers
from cudal2.worker.outcome import CandidateFailed, Outcome
from cudal2.worker.worker import Worker

Legal = Callable[[Sequence[Edit]], Iterable[str]]
"""For each edit why it is not harmless, empty where it is; asked ahead, while others are measured."""

EDITS_AN_INPUT = 32
"""After so many edits the inputs are fresh."""
ROTATED = 4 * buffers.ROTATED
"""Bytes of matrices where the parent has a recipe: a few pairs of turns find room, and no output is written twice."""
MOST_CALLS = 32
"""Calls of a turn at most: what is short is repeated in more pairs instead, for each call takes the host time too."""
QUICK = EffortConfig()
THOROUGH = EffortConfig(batch_ms=1.0, together=1, min_pairs=7, max_pairs=15, precision=0.002, confidence=STRICT)
"""How an edit of a search is timed, and how a finalist and each load of a winner."""
LOADS = 7
"""So often a winner is loaded anew, its parent too: on an H200 two loads of the same code differed by up to 4% for as
long as they stayed, whatever the number of pairs."""
SECONDS = 5.0
"""Wall time that one pair may take before it is thought to hang; an honest one takes milliseconds."""
UNBIASED = Measured(Status.OK, 1.0, 1.0, 1.0)
"""What a place is worth where it is not looked at, or where several arrangements make up for it."""


class EditBench:
    """Judges edits of `parent`, which a worker has built, on `problem`. A context manager.

    Where the parent has a recipe, there is room for a few pairs of turns at once.
    `legal` says which edits are let onto the GPU: `cudal2.sass.legality` proves it. `effort` is how they are timed.
    Raises ValueError where the parent itself does not pass the ordinary checks, HarnessFault where the harness fails.
    """

    def __init__(
        self,
        worker: Worker,
        parent: plan.CudaLaunchable,
        problem: Problem,
        legal: Legal,
        effort: EffortConfig = QUICK,
    ):
        if not isinstance(worker.backend, CudaBackend):
            raise ValueError(f"code of {worker.target.name} is not edited; choose a GPU's target, such as sm_90a")
        self.parent, self._rotated = _roomy(parent, problem)
        self.problem = problem
        self.outcome: Outcome | None = None
        """What the ordinary checks said of the parent, once it has been looked at."""
        self._backend, self._legal = worker.backend, legal
        self._config, self._effort = worker.config, effort
        self._context: ProblemContext | None = None
        self._beside: Beside | None = None
        self._aside: Measured | None = None
        """The parent beside itself in the first arrangement of this runner: what an edit's place there is worth."""
        self._seconds, self._exact, self._judged = 0.0, False, 0
        self._rng = np.random.default_rng()

    def __enter__(self) -> "EditBench":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the runner; the bench may be used again."""
        if self._beside is not None:
            self._beside.close()
            self._beside = self._aside = None

    @property
    def exact(self) -> bool:
        """Whether edits have to give the parent's bits; else, as its own differ from call to call (sums in no fixed
        order), the bounds of the ordinary timed calls have to do.
        """
        with self._device():
            self._ready()
            return self._exact

    def measure(self, edits: Sequence[Edit], best: float = 1.0) -> list[Measured]:
        """Each edit beside the parent: rejected where it does not fit or is not harmless, else what the GPU says.

        What is surely slower than `best`, a speedup, is not measured any better.
        """
        with self._device():
            return [self._judge(edit, why, best) for edit, why in zip(edits, self._legal(edits))]

    def again(self, edit: Edit) -> Measured:
        """An edit once more, as precisely as in each load of `confirm`, in the runner that is there."""
        (why,) = self._legal([edit])
        with self._device():
            return self._judge(edit, why, None)

    def confirm(self, edit: Edit) -> Measured:
        """An edit once more, in LOADS runners that have seen no other; the interval is over these loads."""
        (why,) = self._legal([edit])
        return self._loads(lambda: self._judge(edit, why, None))

    def floor(self, thoroughly: bool = False) -> Measured:
        """A/A: the unedited kernel beside itself, as an edit without moves would be; an honest bench finds 1.00.

        `thoroughly` as a winner is confirmed.
        """
        if thoroughly:
            return self._loads(lambda: self._measure(self.parent.cubin, None))
        with self._device():
            return self._measure(self.parent.cubin, 1.0)

    def _loads(self, judged: Callable[[], Measured]) -> Measured:
        """What LOADS fresh runners say, or the first that goes wrong; between two of them the GPU is free."""
        loads: list[Measured] = []
        while len(loads) < LOADS and all(load.status is Status.OK for load in loads):
            self.close()
            with self._device():
                loads.append(judged())
        return over_loads(loads)

    def _device(self) -> AbstractContextManager[None]:
        return device_lock(exclusive=True, name=self._backend.lock)

    def _judge(self, edit: Edit, why: str, best: float | None) -> Measured:
        try:
            code = cubin.apply(self.parent.cubin, edit)
        except cubin.EditRefused as refused:
            return Measured(Status.REJECTED, reason=str(refused))
        return Measured(Status.REJECTED, reason=why) if why else self._measure(code, best)

    def _measure(self, code: bytes, best: float | None) -> Measured:
        """As a search has it, against the `best` speedup known; thoroughly where that is None."""
        bench = self._backend.bench
        try:
            beside = self._ready(fresh=self._judged % EDITS_AN_INPUT == 0, placed=best is not None)
            self._judged += 1
            if best is None:
                return self._raced(beside, code, THOROUGH)
            return self._raced(beside, code, self._effort, best, self._aside or UNBIASED)
        except CandidateFailed as failed:
            self.close()
            blame(failed)
            if failed.status in SUSPECT:
                bench.probe()
            return Measured(failed.status, reason=failed.reason)
        except (torch.AcceleratorError, torch.OutOfMemoryError) as error:
            self.close()
            raise fault(error) from error
        except BaseException:
            self.close()
            raise

    def _raced(
        self,
        beside: Beside,
        code: bytes,
        effort: EffortConfig,
        best: float | None = None,
        aside: Measured = UNBIASED,
    ) -> Measured:
        """Pair after pair until that is enough. Raises CandidateFailed."""
        most = max(1, beside.arena.buffers.sets // (2 * effort.together))
        count = timing.calls_for(self._seconds, effort.batch_ms / 1e3, min(most, MOST_CALLS))

        def take(arrangement: int, number: int) -> list[edit_pairs.Pair]:
            if arrangement != beside.arrangement:
                beside.arrange(arrangement)
            taken: list[edit_pairs.Pair] = []
            while len(taken) < number:
                taken += beside.pairs(number - len(taken), count)
            return taken

        beside.load(code)
        raced = edit_pairs.race(take, effort, self._config, best, aside.low)
        beside.check()
        summary = timing.summary(raced.edited, raced.parent, "unedited", "device", count, raced.config)
        floor = self._backend.device.floor(self.problem.flop, operators.nbytes(self.problem))
        measurement.plausible(summary, floor)
        given = aside if raced.alone else UNBIASED
        figures = summary.speedup / given.speedup, summary.low / given.high, summary.high / given.low
        return Measured(Status.OK, *figures, summary.pairs)

    def _ready(self, fresh: bool = False, placed: bool = False) -> Beside:
        """The parent in a runner that nothing has spoilt, beside inputs that are `fresh` where that is asked for.

        With `placed` it is known what a place beside it is worth, where that has to be.
        """
        context = self._backend.bench.context(self.problem, self._rotated)
        if context is not self._context:  # other problems took its place meanwhile
            self.close()
            self._context = context
        said = ""
        for _ in range(2):
            try:
                if self._beside is None:
                    self._beside = self._opened(context)
                if fresh or not self._beside.fresh:
                    self._beside.renew()
                if placed and self._aside is None and self._effort.arrangements > 1:
                    alone = msgspec.structs.replace(self._effort, arrangements=1, confidence=STRICT)
                    self._aside = self._raced(self._beside, self.parent.cubin, alone)
                return self._beside
            except CandidateFailed as failed:
                self.close()
                blame(failed)
                said = failed.reason
        raise HarnessFault(f"the unedited kernel fails at times: {said}", "Edit one that cudal2 bench kernel passes")

    def _opened(self, context: ProblemContext) -> Beside:
        """The parent in a fresh runner; the first time it is checked as any kernel is. Raises CandidateFailed."""
        bench = self._backend.bench
        rounding, touch = bench.device.target.rounding, bench.vendor.touch_seconds
        timed = TimingContext(context.arena, context.baseline, bench.config, self._rng, rounding, touch)
        runner = bench.runners.take(self.parent.recording.base)
        runner.seconds = bench.config.run_seconds
        try:
            context.arena.restore()
            beside = Beside(runner, context.memory, timed, self.parent)
            if self.outcome is None:
                self._look_at_parent(beside)
        except CandidateFailed as failed:
            runner.close()
            blame(failed)
            if self.outcome is not None:
                raise
            said = f"the unedited kernel is {failed.status}: {failed.reason}"
            raise ValueError(f"{said}; edit one that cudal2 bench kernel passes") from failed
        except BaseException:
            runner.close()
            raise
        runner.seconds = min(SECONDS, bench.config.run_seconds)
        beside.exact = self._exact
        return beside

    def _look_at_parent(self, beside: Beside) -> None:
        outcome, self._seconds = beside.verify()
        beside.renew()
        self._exact = bool(outcome.repeatable) and beside.repeat()
        self.outcome = outcome


def parent_of(worker: Worker, candidate: Candidate) -> plan.CudaLaunchable:
    """A candidate without its edit, built, gated and planned; with a recipe where it has one.

    Raises ValueError where that fails.
    """
    unedited = msgspec.structs.replace(candidate, edit=None)
    prepared = worker.build(unedited)
    if prepared.launchable is None:
        raise ValueError(f"the unedited kernel is {prepared.status}: {prepared.reason}")
    made: plan.CudaLaunchable = prepared.launchable
    with suppress(NotPortable):  # it is measured at fewer places
        made = msgspec.structs.replace(made, recipe=recipe.seal(worker.portable(unedited).recipe, made.cubin, ""))
    return made


def _roomy(parent: plan.CudaLaunchable, problem: Problem) -> tuple[plan.CudaLaunchable, int]:
    """The parent with a plan for each set of buffers, and how many bytes of matrices these have."""
    if not parent.recipe:
        return parent, buffers.ROTATED
    return unsealing.launchable(parent.recipe, parent.cubin, problem, ROTATED), ROTATED


def over_loads(loads: Sequence[Measured]) -> Measured:
    """What one kernel came to in several loads: the median, and from the least to the greatest, which of seven miss the
    median of all loads once in 64 times. A failure where one failed.
    """
    if loads[-1].status is not Status.OK:
        return loads[-1]
    speeds = sorted(load.speedup for load in loads)
    return Measured(Status.OK, median(speeds), speeds[0], speeds[-1], sum(load.pairs for load in loads))
