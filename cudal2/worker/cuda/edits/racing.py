"""How many pairs of turns is an edit worth? A few where it is surely slower than the best known, more where it may win.

A race in the sense of O. Maron and A. Moore (Hoeffding races, 1994): what an interval already tells from the best is
left behind. Two loads of one kernel may differ in speed for as long as they stay, so the pairs of one that may win are
spread over several loads, in `arrangements`: the parent loaded first, the edit first, and so on; what a place is worth
then cancels in their mean.
"""

import time
from collections.abc import Callable

import msgspec
import numpy as np

from cudal2.config import EffortConfig, WorkerConfig
from cudal2.worker import looks, timing

Pair = tuple[float, float]
"""Seconds a call of the edited kernel and of its parent."""
Seconds = tuple[list[float], list[float]]
"""Those of pairs, edited and parent apart."""


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
    Every look is paid for (`looks`); for that first one the others are the more severe.
    """
    config, started = timed(worker, effort), time.perf_counter()
    several, missed = effort.arrangements > 1, looks.missing([(effort.min_pairs, 1)])
    taken: list[list[Pair]] = [[] for _ in range(effort.arrangements)]
    if best is not None and several and missed <= (1 - config.confidence) / 2:
        taken[0] = take(0, effort.min_pairs)
        edited, parent = mean(taken[:1])
        if timing.speedup(edited, parent).high / aside < best:
            alone = msgspec.structs.replace(config, max_pairs=effort.min_pairs, confidence=1 - missed)
            return Raced(edited, parent, alone, True)
        config = msgspec.structs.replace(config, confidence=config.confidence + missed)
    turn = list(range(effort.arrangements))
    for count in looks.counts(config.min_pairs, config.max_pairs):
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
    k = dict(looks.bands(config.min_pairs, config.max_pairs, config.confidence)).get(len(edited), 0)
    return best is not None and k > 0 and timing.speedup(edited, parent, k).high < best
