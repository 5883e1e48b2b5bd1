"""What suggests candidates to a search, whatever it does inside: the protocol, and what a proposer is told."""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate


class Trial(msgspec.Struct, frozen=True):
    """A candidate that a search had judged, the `index`-th of its generation.

    `prompt` is what its proposer wrote down about it, `source_hash` the digest of its source, `low` the lower bound of
    its speedup over the fastest baseline, 0 unless it is judged and correct; `seconds` of wall time went into it.
    """

    prompt: str
    generation: int
    index: int
    source_hash: str
    low: float = 0.0
    seconds: float = 0.0


class Task(msgspec.Struct, frozen=True):
    """A problem, and the problems of the search that lend to it, nearest first."""

    problem: Problem
    lenders: tuple[Problem, ...] = ()


Trials = Mapping[Problem, Sequence[Trial]]
"""What was tried for a problem and for those that lend to it, in order."""


class Proposer(Protocol):
    """Suggests candidates for a problem, given what the search has tried, within a budget.

    A search that was killed asks again for its last generation. So the answer must follow from the configuration and
    the arguments, and that to a smaller `count` must be the beginning of that to a larger one.
    """

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        """Up to `count` new candidates for the task's problem, each with what is to be remembered of how it was made;
        none where nothing is left to try. `trials` are those of earlier generations."""
        ...


def seeded(config: SearchConfig, task: Task, generation: int) -> random.Random:
    """Randomness that is the same whenever a search comes to that generation of that problem."""
    return random.Random(f"{config.seed} {task.problem.name} {generation}")


def refuse_help(config: SearchConfig) -> None:
    """ValueError where the configuration asks for a start or for loans that its method does not take."""
    search = config.search
    if search.prior != "none" or search.neighbours:
        raise ValueError(
            f"search.method={search.method} takes no settings from elsewhere: add search.prior=none search.neighbours=0"
        )
