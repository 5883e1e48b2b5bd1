"""The protocol of a proposer, which suggests candidates to a search, and the records that it is given."""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate


class Trial(msgspec.Struct, frozen=True):
    """A candidate that a search has judged: the `index`-th of its `generation`.

    `prompt` is its proposer's record of how it was made, `source_hash` its `Candidate.kernel_hash`, `low` the lower
    bound of its speedup over the fastest baseline (0 unless it is judged and correct), `seconds` its share of the
    wall time.
    """

    prompt: str
    generation: int
    index: int
    source_hash: str
    low: float = 0.0
    seconds: float = 0.0


class Task(msgspec.Struct, frozen=True):
    """A problem, and the other problems of the search whose best kernels are tried for it too, nearest first."""

    problem: Problem
    lenders: tuple[Problem, ...] = ()


Trials = Mapping[Problem, Sequence[Trial]]
"""The trials of a problem and of its lenders, each in order."""


class Proposer(Protocol):
    """Suggests candidates for a problem, given what the search has tried, within a budget.

    A search that was killed asks again for its last generation. So the answer must be a function of the configuration
    and the arguments, and the answer to a smaller `count` must be the beginning of the answer to a larger one.
    """

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        """Up to `count` new candidates for the task's problem, each with a record of how it was made (the trial's
        `prompt`); none where nothing is left to try. `trials` are those of earlier generations."""
        ...


def seeded(config: SearchConfig, task: Task, generation: int) -> random.Random:
    """A random generator that is the same whenever a search proposes that generation of that problem."""
    return random.Random(f"{config.seed} {task.problem.name} {generation}")


def refuse_prior_and_neighbours(config: SearchConfig) -> None:
    """Raises ValueError where the configuration asks for a prior or for neighbours, which the method does not use."""
    search = config.search
    if search.prior != "none" or search.neighbours:
        raise ValueError(
            f"search.method={search.method} takes no settings from elsewhere: add search.prior=none search.neighbours=0"
        )
