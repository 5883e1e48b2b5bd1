"""The read floor of a problem: how long a kernel takes that only reads its operands once and writes as many bytes as C
has, under the very conditions of a comparison.

A product of few rows does little more than read its weights, so its figures say more beside that one. The kernels that
read, in several launches, and the baselines go through the same histories (pairing.py) on all sets of inputs, in drawn
order. The launches are sieved in some rounds; the best few are then measured in the same rounds as the baselines, and
the one of the smallest median counts: a floor is a minimum.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cudal2.worker.cuda.pairing import TimingContext, untouched
from cudal2.worker.cuda.vendor.names import LAYOUTS
from cudal2.worker.gpu.history import History
from cudal2.worker.timing import ReadFloor

SIEVE, FINALISTS, ROUNDS = 5, 3, 15
"""Rounds in which all launches are timed; how many go on; rounds in which these are timed beside the baselines."""

Run = Callable[[History], float]
"""Seconds on the device's clock of a history's calls, touches included."""


def measure(context: TimingContext, baselines: Sequence[str]) -> ReadFloor:
    """The floor of the context's problem, beside baselines that were prepared. Raises HarnessFault, ValueError."""
    side = context.baseline
    readings = side.readings()
    sieved = _rounds(context, readings, SIEVE)
    best = sorted(readings, key=lambda name: statistics.median(sieved[name]))[:FINALISTS]
    others = {name: partial(side.run, name) for name in baselines}
    rounds = _rounds(context, {name: readings[name] for name in best} | others, ROUNDS)
    launch = min(best, key=lambda name: statistics.median(rounds[name]))
    return ReadFloor(launch, rounds[launch], {name: rounds[name] for name in baselines})


def _rounds(context: TimingContext, runs: Mapping[str, Run], count: int) -> dict[str, list[float]]:
    """Seconds a call of each of these in each round. One more round goes ahead, which loads what a first run must."""
    every = slice(0, context.arena.buffers.sets)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count + 1):
        context.arena.fill(every)
        for layout in LAYOUTS:
            context.baseline.refresh(layout, every)
        history = context.history(every)
        for name in context.rng.permutation(list(runs)).tolist():
            context.arena.settle()
            seconds = untouched(runs[name](history), history, context.touch_seconds)
            found[name].append(seconds / len(history.order))
    return {name: seconds[1:] for name, seconds in found.items()}
