"""What each round of a search added. A method that finds nothing new looks, by its results alone, like one that has
found all there is."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import geometric_mean

import msgspec

from cudal2.problem import Problem
from cudal2.search.proposer import Trial


class Round(msgspec.Struct, frozen=True):
    """One round: how many problems it judged kernels for, and for how many of them a `first` one that is right, or one
    that is `faster` than all before it. `gain` is by what factor the best of these problems became faster, in the
    geometric mean of those that had one before.

    Speeds are lower bounds of the speedup. Of equal kernels the best rises by chance, too, by less than a measurement
    is sure.
    """

    number: int
    judged: int
    first: int
    faster: int
    gain: float

    def __str__(self) -> str:
        news = f"faster for {self.faster} of {self.judged} shapes, {100 * (self.gain - 1):+.1f}% in the mean of all"
        return f"round {self.number:>3}: " + (f"a right kernel for {self.first}, " if self.first else "") + news


def rounds(trials: Mapping[Problem, Sequence[Trial]]) -> list[Round]:
    """Each round of the trials, in order."""
    count = 1 + max((trial.generation for some in trials.values() for trial in some), default=-1)
    best = {problem: _best(some, count) for problem, some in trials.items()}
    pairs: list[list[Sequence[float]]] = [[] for _ in range(count)]
    for problem, some in trials.items():
        for number in {trial.generation for trial in some}:
            pairs[number].append(best[problem][number : number + 2])
    return [_round(number, before_and_after) for number, before_and_after in enumerate(pairs)]


def _best(trials: Sequence[Trial], count: int) -> list[float]:
    """The best speed before the first round, 0, and after each."""
    highest = [0.0] * count
    for trial in trials:
        highest[trial.generation] = max(highest[trial.generation], trial.low)
    return [0.0, *accumulate(highest, max)]


def _round(number: int, pairs: Sequence[Sequence[float]]) -> Round:
    had = [(before, after) for before, after in pairs if before]
    gain = geometric_mean(after / before for before, after in had) if had else 1.0
    first = sum(after > 0 for before, after in pairs if not before)
    return Round(number + 1, len(pairs), first, sum(after > before for before, after in had), gain)
