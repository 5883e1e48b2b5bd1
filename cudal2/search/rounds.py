"""What each round of a search added. A method that finds nothing new looks, by its results alone, like one that has
found all there is."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import geometric_mean

import msgspec

from cudal2.problem import Problem
from cudal2.search.proposer import Trial


class Round(msgspec.Struct, frozen=True):
    """One round: how many problems it judged kernels for, and how many of them `had` a right kernel before. It found a
    `first` one for some of the others, and for some of those that had one a `faster` one. `gain` is by what factor the
    best of these became faster, in their geometric mean.

    Speeds are lower bounds of the speedup. Of equal kernels the best rises by chance, too, by less than a measurement
    is sure.
    """

    number: int
    judged: int
    had: int
    first: int
    faster: int
    gain: float

    def __str__(self) -> str:
        # Where no kernel was before, nothing can be faster than it: a 0 would read as slower than torch.
        first = f"a first right kernel for {self.first} of {self.judged - self.had} shapes"
        gain = f"{100 * (self.gain - 1):+.1f}% in their mean"
        faster = f"better than before for {self.faster} of {self.had} shapes, {gain}"
        return f"round {self.number:>3}: " + ", ".join([first] * (self.judged > self.had) + [faster] * (self.had > 0))


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
    return Round(number + 1, len(pairs), len(had), first, sum(after > before for before, after in had), gain)
