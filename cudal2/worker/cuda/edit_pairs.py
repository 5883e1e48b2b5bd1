"""Pairs of turns of an edited kernel and its parent: on one runner, and as many of them as the edit is worth.

`Beside` is a runner that holds a kernel, its parent, and beside it one edited kernel after the other, on the sets of
one arena. An edit only moves instructions, so it must give what the parent gives on the same inputs, bit for bit, at
every launch. What the parent gives is kept where only the referee maps it; so are the inputs and the patterns around
them.

`race` takes a few pairs where an edit is surely slower than the best known, more where it may win: a race in the sense
of O. Maron and A. Moore (Hoeffding races, 1994), where what an interval already tells from the best is left behind. Two
loads of one kernel may differ in speed for as long as they stay, so the pairs of one that may win are spread over
several loads, in `arrangements`: the parent loaded first, the edit first, and so on; what a place is worth then cancels
in their mean.
"""

import secrets
import time
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from cudal2.config import EffortConfig, WorkerConfig
from cudal2.records import Status
from cudal2.worker import inputs, measurement, timing, verify
from cudal2.worker.cuda import plan, session
from cudal2.worker.cuda.memory import SharedMemory
from cudal2.worker.cuda.pairing import TimingContext
from cudal2.worker.cuda.session import Runner
from cudal2.worker.gpu.arena import check_calls
from cudal2.worker.outcome import CandidateFailed, Outcome, raise_finding

PARENT, EDITED = 0, 1
"""The runner's slots."""
Pair = tuple[float, float]
"""Seconds a call of the edited kernel and of its parent."""
Seconds = tuple[list[float], list[float]]
"""Those of pairs, edited and parent apart."""


class Beside:
    """Takes the runner, which has seen no kernel, and loads the parent. Every method may raise CandidateFailed."""

    def __init__(self, runner: Runner, memory: SharedMemory, context: TimingContext, parent: plan.CudaLaunchable):
        self.context, self.arena, self.runner = context, context.arena, runner
        self.workspace = -(-parent.recording.workspace // 2) * 2
        self.exact = False
        """Whether the parent gives the same bits each time, so that an edit has to as well."""
        self._inputs, self._first, self._cold = -1, 0, True
        self.arrangement = 0
        """Even where the parent was loaded before the edit, odd where behind it."""
        packed = plan.pack(parent.recording, parent.cubin, self.arena.buffers.workspace)
        runner.load(packed, memory.fd, self.arena.buffers.bytes)

    def verify(self) -> tuple[Outcome, float]:
        """The parent held to the ordinary checks, and seconds of its fastest call."""
        return check_calls(self.runner.run, self.arena, self.workspace, self.context.rounding)

    def load(self, code: bytes) -> None:
        """Have an edited cubin beside the parent, in place of the one before it; the parent was loaded before it."""
        self.runner.load_second(code, session.BEFORE if self.arrangement % 2 else session.KEPT)
        self.arrangement, self._cold = 0, True

    def arrange(self, number: int) -> None:
        """Have both loaded anew: the parent first where the number is even, the edit first where it is odd."""
        self.runner.load_second(None, session.BEHIND if number % 2 else session.BEFORE)
        self.arrangement, self._cold = number, True

    @property
    def fresh(self) -> bool:
        """Whether the inputs are still those of the last `renew`."""
        return self._inputs == self.arena.inputs_given

    def renew(self) -> None:
        """Fresh inputs in every set, everything around them whole, and what the parent alone makes of them."""
        self.arena.restore()
        self.arena.fill(slice(None))
        self._run_parent()
        self.context.check_one(int(self.context.rng.integers(self.arena.buffers.sets)))
        self.arena.reference.copy_(self.arena.c)
        raise_finding(verify.check_values(self.arena.reference))
        self.arena.poison(self.workspace)
        self._inputs = self.arena.inputs_given

    def repeat(self) -> bool:
        """Whether the parent gives the same bits for every set once more. Comes after `renew`."""
        self._run_parent()
        same = torch.equal(self._bits(self.arena.c), self._bits(self.arena.reference))
        self.arena.poison(self.workspace)
        return same

    def pairs(self, number: int, count: int) -> list[tuple[float, float]]:
        """Up to `number` pairs of turns, each turn of `count` calls, as many as there are sets for in one go; seconds a
        call of the edited kernel and of the parent. Which of a pair goes first, and which sets it has, is drawn. Behind
        a load a call of either comes first that is not timed: it is another matter. None, where only that finds room.
        """
        sets, warm = self.arena.buffers.sets, int(self._cold)
        number = min(number, (sets // 2 - warm) // count)
        counts = [1] * warm + [count] * number
        self._first = measurement.next_start(self._first, 2 * sum(counts), range(sets))
        window = slice(self._first, self._first + 2 * sum(counts))
        self._first, self._cold = window.stop, False
        order = iter(self.context.order(window))
        leaders = [secrets.randbelow(2) for _ in counts]
        turns = [
            (slot, [next(order) for _ in range(calls)])
            for calls, leader in zip(counts, leaders)
            for slot in (leader, 1 - leader)
        ]
        self.arena.settle()
        seconds = self.runner.turns(turns)
        self._compare(window, [one for slot, sets in turns if slot == EDITED for one in sets])
        inputs.poison(self.arena.c[window])
        two = [(seconds[2 * place + 1 - leader], seconds[2 * place + leader]) for place, leader in enumerate(leaders)]
        return [(edited / count, parent / count) for edited, parent in two[warm:]]

    def check(self) -> None:
        """All that an edited kernel may have spoilt beside the outputs that were compared."""
        self.context.check(slice(0, 0), self.workspace)

    def close(self) -> None:
        self.runner.close()

    def _run_parent(self) -> None:
        """The parent on every set, in random order, with all that it writes poisoned before and looked at after."""
        every = slice(0, self.arena.buffers.sets)
        self.arena.poison(self.workspace)
        self.arena.settle()
        self.runner.turns([(PARENT, self.context.order(every))])
        self.context.check(every, self.workspace)

    def _compare(self, window: slice, edited: list[int]) -> None:
        found, expected = self.arena.c[window], self.arena.reference[window]
        if not self.exact:
            raise_finding(verify.check_timed(found, expected, self.arena.problem, self.context.rounding))
            return
        if torch.equal(self._bits(found), self._bits(expected)):
            return
        differing = (found.view(torch.int16) != expected.view(torch.int16)).flatten(1).sum(1).tolist()
        counts = {window.start + place: count for place, count in enumerate(differing) if count}
        number, count = next((item for item in counts.items() if item[0] in edited), (-1, 0))
        if not count:
            self.context.check(window, self.workspace)
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "beside it the unedited kernel gives other results than alone")
        said = f"{count} of {found[0].numel()} elements of a call differ from the unedited kernel's"
        broken = verify.check_values(self.arena.c[number])
        raise CandidateFailed(Status.WRONG, f"{said}; {broken[1]}" if broken else said)

    @staticmethod
    def _bits(matrices: torch.Tensor) -> torch.Tensor:
        return matrices.view(torch.int64)  # four elements at once


class Raced(msgspec.Struct, frozen=True):
    """The seconds of a race, for `timing.summary` under `config`; `alone` where only the first arrangement was run."""

    edited: list[float]
    parent: list[float]
    config: WorkerConfig
    alone: bool


def timed(config: WorkerConfig, effort: EffortConfig) -> WorkerConfig:
    """How a worker of that configuration times with such an effort."""
    names = ("batch_ms", "min_pairs", "max_pairs", "precision", "confidence")
    return msgspec.structs.replace(config, **{name: getattr(effort, name) for name in names})


def race(
    take: Callable[[int, int], list[Pair]],
    effort: EffortConfig,
    worker: WorkerConfig,
    best: float | None = None,
    aside: float = 1.0,
) -> Raced:
    """Pairs of `take`, which is given the arrangement and how many of them, until they are enough.

    They are where a look finds the speedup surely less than `best`, where it is as precise as asked for, and at
    `max_pairs`. With several arrangements the first look is at the first of them alone, where the parent beside itself
    is at least `aside` times as fast; from then on a pair is the mean of one in each. Without `best`, or where so few
    pairs tell nothing at that confidence, all arrangements are run from the start.
    Every look is paid for (`timing`); for that first one the others are the more severe.
    """
    config, started = timed(worker, effort), time.perf_counter()
    several, missed = effort.arrangements > 1, timing.miss_probability([(effort.min_pairs, 1)])
    taken: list[list[Pair]] = [[] for _ in range(effort.arrangements)]
    if best is not None and several and missed <= (1 - config.confidence) / 2:
        taken[0] = take(0, effort.min_pairs)
        edited, parent = mean(taken[:1])
        if timing.speedup(edited, parent).high / aside < best:
            alone = msgspec.structs.replace(config, max_pairs=effort.min_pairs, confidence=1 - missed)
            return Raced(edited, parent, alone, True)
        config = msgspec.structs.replace(config, confidence=config.confidence + missed)
    turn = list(range(effort.arrangements))
    for count in timing.look_counts(config.min_pairs, config.max_pairs):
        for which in turn:
            if len(taken[which]) < count:
                taken[which] += take(which, count - len(taken[which]))
        turn.reverse()  # what is loaded goes first
        edited, parent = mean(taken)
        if enough(edited, parent, config, started, best):
            break
    return Raced(edited, parent, config, not several)


def mean(taken: list[list[Pair]]) -> Seconds:
    """Of the first pairs of all arrangements, of the second and so on, the geometric means."""
    logs = np.log(np.array(taken)).mean(axis=0)
    edited, parent = np.exp(logs).T.tolist()
    return edited, parent


def enough(edited: list[float], parent: list[float], config: WorkerConfig, started: float, best: float | None) -> bool:
    """Whether these pairs, timed since `started`, are: also where a look finds the edit surely slower than `best`."""
    if timing.enough(edited, parent, config, started):
        return True
    k = dict(timing.look_bands(config.min_pairs, config.max_pairs, config.confidence)).get(len(edited), 0)
    return best is not None and k > 0 and timing.speedup(edited, parent, k).high < best
