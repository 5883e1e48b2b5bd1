"""The trials of a search, read from the archive: a search has no other state.

Every verdict is a sample of kind "search". Its `prompt` is the proposer's record of how the kernel was made, its `step`
the generation, its `index` the place in the generation.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec

from cudal2 import config as configuration
from cudal2.archive import Archive
from cudal2.archive.records import Entry, Origin
from cudal2.config import SearchConfig
from cudal2.form import kernel_form
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Verdict, digest
from cudal2.search.proposer import Trial


def identity(config: SearchConfig) -> dict[str, Any]:
    """The keys and values that identify a search: all that may change what is proposed or how it is judged.

    The list of shapes belongs to them if shapes influence one another: by `neighbours`, or because a policy samples
    for all of them at once.
    """
    values = {key: value for key, value in configuration.identity(config).items() if not key.startswith("shapes.")}
    if config.turns.count == 1:  # so that searches older than this key keep their identity
        del values["turns.count"]
    if config.search.order == "nearest":  # likewise
        del values["search.order"]
    together = config.search.neighbours or config.search.method == "policy"
    shapes = sorted({problem.name for problem in config.shapes.problems()}) if together else []
    return values | {"shapes": shapes}


@cache
def _digest(config: SearchConfig) -> str:
    return digest(msgspec.json.encode(identity(config), order="sorted").decode())[:16]


class History(msgspec.Struct, frozen=True):
    """The search of one configuration in one environment; with another of either it is another search.

    `ahead` starts building candidates that will be judged later; for proposers that take long to write others. `others`
    are searches of the same problems whose kernels need not be measured again here: a policy passes them over.
    """

    config: SearchConfig
    environment: Environment
    archive: Archive
    ahead: Callable[[Sequence[Candidate]], None] = lambda candidates: None
    others: tuple["History", ...] = ()

    def trials(self, problem: Problem) -> list[Trial]:
        """The trials for `problem`, in order, each as this search measured it."""
        here = self.environment.fingerprint
        return [
            Trial(
                sample.origin.prompt,
                sample.origin.step,
                sample.origin.index,
                sample.source_hash,
                # One of several GPUs may be of another kind, whose speeds do not compare.
                (sample.low or 0.0) if sample.fingerprint == here else 0.0,
                sample.origin.seconds,
            )
            for sample in self.archive.samples("search", self.name(problem))
        ]

    def forms(self, problem: Problem, trials: Sequence[Trial]) -> set[str]:
        """The forms (`cudal2.form`) of these trials' kernels, and of all that the other searches have tried."""
        found = {self._form(trial.source_hash) for trial in trials}
        return found.union(*(one.forms(problem, one.trials(problem)) for one in self.others))

    def _form(self, kernel_hash: str) -> str:
        return kernel_form(self.archive.source(kernel_hash), self.archive.edit(kernel_hash))

    def origin(self, problem: Problem, trial: Trial, seconds: float = 0.0) -> Origin:
        """The origin under which that trial's verdict is archived."""
        return Origin(
            kind="search",
            run=self.name(problem),
            step=trial.generation,
            index=trial.index,
            policy=self.config.search.method,
            prompt=trial.prompt,
            seconds=seconds,
            turn=trial.generation % self.config.turns.count,
        )

    def verdict(self, problem: Problem, trial: Trial) -> Verdict | None:
        """The verdict on that trial's kernel, as this search measured it; None where it is not judged."""
        return self.archive.verdict(self.origin(problem, trial))

    def entries(self, problem: Problem, trials: Sequence[Trial]) -> list[Entry]:
        """The kernels of these trials with their verdicts; without those of another environment."""
        found = [(trial, self.verdict(problem, trial)) for trial in trials]
        return [
            Entry(self.archive.source(trial.source_hash), verdict, self.archive.edit(trial.source_hash))
            for trial, verdict in found
            if verdict and verdict.environment == self.environment
        ]

    def name(self, problem: Problem) -> str:
        """The `run` of an origin: this search of that problem, and no other."""
        return f"{self.config.target} {problem.name} {_digest(self.config)} {self.environment.fingerprint}"


def which(run: str) -> str:
    """The digest of a search's configuration, from the `run` of an origin; the same for all its problems."""
    return run.split(" ")[2]
