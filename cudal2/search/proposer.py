"""The protocol of a proposer, which suggests candidates to a search, and the records that it is given and keeps.

A kernel is rendered from a setting, or made by mutation of another kernel, or by a policy that was told the verdict on
another one; the trial's `prompt` says which.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from cudal2.config import SearchConfig
from cudal2.corpus import Knobs
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


class Setting(msgspec.Struct, frozen=True):
    """A value for each knob of a family; a trial's `prompt` is this record as JSON."""

    family: str
    knobs: Knobs


class Mutated(msgspec.Struct, frozen=True):
    """Made by mutations of these `kinds`, in this order, of the kernel whose hash begins with `parent`. Its first
    ancestor was rendered from the setting `origin`. The trial's `prompt` is this record as JSON."""

    kinds: tuple[str, ...]
    parent: str
    origin: Setting


class Revised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Made by a policy in a later turn, after it was `told` this about the kernel of the turn before, whose hash is
    `parent`. The trial's `prompt` is this record as JSON."""

    parent: str
    told: str


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


def answered(prompt: str) -> Revised | None:
    """The verdict that a policy's later turn answers; None for a first turn, and for other proposers."""
    try:
        return msgspec.json.decode(prompt, type=Revised)
    except msgspec.DecodeError:  # ValidationError is one of them
        return None


def made(prompt: str) -> Setting | Mutated:
    """How a kernel was made; msgspec.DecodeError where the prompt records neither of the two."""
    try:
        return msgspec.json.decode(prompt, type=Mutated)
    except msgspec.ValidationError:
        return msgspec.json.decode(prompt, type=Setting)


def origin(prompt: str) -> Setting:
    """The setting that a kernel's first ancestor was rendered from; msgspec.DecodeError where the prompt has none."""
    making = made(prompt)
    return making.origin if isinstance(making, Mutated) else making
