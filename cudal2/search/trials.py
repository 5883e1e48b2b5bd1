"""The trials of a search, read from the archive (it has no other state), and those of a generation that are missing.

Every verdict is a sample of kind "search". Its `prompt` is the proposer's record of how the kernel was made, its `step`
the generation, its `index` the place in the generation.

A generation of a problem is a function of the configuration and of the generations before it. So a search that was
killed proposes the same generation again, and judges only the kernels still missing.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count, groupby
from typing import Any

import msgspec

from cudal2 import config as configuration
from cudal2.archive import Archive
from cudal2.archive.records import Entry, Origin
from cudal2.config import SearchConfig, SearchMethodConfig
from cudal2.form import kernel_form
from cudal2.policy import learnt
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Verdict, digest
from cudal2.search.proposer import Proposer, Task, Trial, Trials


def settled(config: SearchConfig) -> SearchConfig:
    """The configuration with the template of its prompts; which one a policy learnt counts only where it is asked."""
    return learnt.settled(config, config.policy.path if config.search.asks_policy else None)


def identity(config: SearchConfig) -> dict[str, Any]:
    """The keys and values that identify a search: all that may change what is proposed or how it is judged.

    The list of shapes belongs to them if shapes influence one another: by `neighbours`, or because a policy samples
    for all of them at once.
    """
    values = configuration.identity(settled(config))
    values = {key: value for key, value in values.items() if not key.startswith("shapes.")}
    if config.turns.count == 1:  # so that searches older than this key keep their identity
        del values["turns.count"]
    together = config.search.neighbours or config.search.asks_policy
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
        forms = {self._form(trial.source_hash) for trial in trials}
        return forms.union(*(one.forms(problem, one.trials(problem)) for one in self.others))

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
        judged = [(trial, self.verdict(problem, trial)) for trial in trials]
        return [
            Entry(self.archive.source(trial.source_hash), verdict, self.archive.edit(trial.source_hash))
            for trial, verdict in judged
            if verdict and verdict.environment == self.environment
        ]

    def name(self, problem: Problem) -> str:
        """The `run` of an origin: this search of that problem, and no other."""
        return f"{self.config.target} {problem.name} {_digest(self.config)} {self.environment.fingerprint}"


def which(run: str) -> str:
    """The digest of a search's configuration, from the `run` of an origin; the same for all its problems."""
    return run.split(" ")[2]


def affordable_now(search: SearchMethodConfig, earlier: Sequence[Trial]) -> int:
    """The size of a problem's next generation after these earlier trials; 0 or less where the budget is spent."""
    return min(search.generation, (search.kernels or sys.maxsize) - len(earlier))


def missing(
    search: SearchMethodConfig, proposer: Proposer, task: Task, generation: int, trials: Trials
) -> dict[Candidate, Trial] | None:
    """The candidates of that generation still to be judged, each with its trial-to-be; None where the search has ended.

    `trials` are those of the problem and of its lenders; the proposer sees only those of earlier generations. A
    search ends when its budget is spent or the proposer has nothing left to try.
    """
    earlier = {
        problem: [trial for trial in trials[problem] if trial.generation < generation]
        for problem in (task.problem, *task.lenders)
    }
    before = earlier[task.problem]
    here = [trial for trial in trials[task.problem] if trial.generation == generation]
    size = affordable_now(search, before)
    if size <= 0 or 0 < search.seconds <= seconds(before):
        return None
    later = len(trials[task.problem]) > len(before) + len(here)
    if later or len(here) >= size:
        return {}
    proposed = proposer.propose(task, earlier, generation, size)
    if not proposed:
        return None
    judged = {trial.source_hash for trial in here}
    new = [candidate for candidate in proposed if candidate.kernel_hash not in judged][: size - len(here)]
    # If the proposer's code has changed since, it proposes other candidates; those already judged keep their places.
    taken = {trial.index for trial in here}
    places = (index for index in count() if index not in taken)
    return {
        candidate: Trial(proposed[candidate], generation, index, candidate.kernel_hash)
        for candidate, index in zip(new, places)
    }


def affordable(search: SearchMethodConfig, trials: Sequence[Trial]) -> list[Trial]:
    """The first of a problem's trials, as many as this budget pays for: an earlier start may have had a larger one."""
    paid: list[Trial] = []
    for _, generation in groupby(trials[: search.kernels or None], key=lambda trial: trial.generation):
        if 0 < search.seconds <= seconds(paid):
            break
        paid += generation
    return paid


def seconds(trials: Sequence[Trial]) -> float:
    """Wall time that these trials took, in seconds."""
    return sum(trial.seconds for trial in trials)
