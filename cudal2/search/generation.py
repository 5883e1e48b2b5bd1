"""One generation of one problem: a function of the configuration and of the generations before it.

It is the same when a search that was killed comes to it again, so that only what is missing of it need be judged.
Problems are islands that exchange settings: each generation takes over the best ones of the nearest problems, as
found in earlier generations, before it makes children of its own (E. Cantú-Paz, A survey of parallel genetic
algorithms, 1998, calls it migration).
"""

import random
import sys
from collections.abc import Mapping, Sequence
from itertools import count, groupby

import msgspec

from cudal2.config import SearchConfig, SearchMethodConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.records import Candidate, digest
from cudal2.search import known, prior
from cudal2.search.proposals import Setting, Trial, propose


class Task(msgspec.Struct, frozen=True):
    """A problem, the families that can serve it, and the problems of the search that lend to it, nearest first."""

    problem: Problem
    families: tuple[Family, ...]
    lenders: tuple[Problem, ...]


def missing(
    config: SearchConfig, device: str, task: Task, generation: int, trials: Mapping[Problem, Sequence[Trial]]
) -> dict[Candidate, Trial] | None:
    """What is still to be judged of that generation, each as the trial it will be; None where the search has ended.

    `trials` are those of the problem and of its lenders. A search ends when its budget is spent or nothing is left
    to try.
    """
    search, problem = config.search, task.problem
    before = [trial for trial in trials[problem] if trial.generation < generation]
    here = [trial for trial in trials[problem] if trial.generation == generation]
    size = min(search.generation, (search.kernels or sys.maxsize) - len(before))
    if size <= 0 or 0 < search.seconds <= seconds(before):
        return None
    later = len(trials[problem]) > len(before) + len(here)
    if later or len(here) >= size:
        return {}
    # Seeded anew for each generation, so that a continued search draws what it would have drawn.
    rng = random.Random(f"{config.seed} {problem.name} {generation}")
    first = _first(config, device, task, generation, trials, rng)
    proposed = propose(search.method, problem, task.families, before, first, size, rng)
    if not proposed:
        return None
    judged = {trial.source for trial in here}
    new = [source for source in proposed if digest(source) not in judged][: size - len(here)]
    # A family that was changed meanwhile proposes otherwise; what was judged keeps its place all the same.
    taken = {trial.index for trial in here}
    places = (index for index in count() if index not in taken)
    return {
        Candidate(source, problem, config.target): Trial(proposed[source], generation, index, digest(source))
        for source, index in zip(new, places)
    }


def affordable(search: SearchMethodConfig, trials: Sequence[Trial]) -> list[Trial]:
    """Those of a problem's trials that this budget pays for: of a search that once had a larger one, the first."""
    found: list[Trial] = []
    for _, generation in groupby(trials[: search.kernels or None], key=lambda trial: trial.generation):
        if 0 < search.seconds <= seconds(found):
            break
        found += generation
    return found


def seconds(trials: Sequence[Trial]) -> float:
    """Wall time that went into judging them."""
    return sum(trial.setting.seconds for trial in trials)


def _first(
    config: SearchConfig,
    device: str,
    task: Task,
    generation: int,
    trials: Mapping[Problem, Sequence[Trial]],
    rng: random.Random,
) -> list[Setting]:
    """Settings to be tried before any are drawn: at most half a generation lent, and at the very first a prior's."""
    half = config.search.generation // 2
    first = _lent(task, generation, trials)[:half]
    if generation == 0 and config.search.prior == "known":
        first += known.settings(config.target, task.problem, task.families)
    if generation == 0 and config.search.prior == "nvidia":
        advice = prior.advise(task.problem, device, max(1, half))
        first += prior.follow(advice, task.problem, task.families, rng)
    return first


def _lent(task: Task, generation: int, trials: Mapping[Problem, Sequence[Trial]]) -> list[Setting]:
    """The lenders' best settings of earlier generations that this problem has not tried by then."""
    tried = {trial.source for trial in trials[task.problem] if trial.generation < generation}
    best: dict[str, Setting] = {}
    for lender in task.lenders:
        correct = [trial for trial in trials[lender] if trial.generation < generation and trial.low]
        if correct:
            top = max(correct, key=lambda trial: trial.low)
            best.setdefault(top.source, top.setting)
    return [setting for source, setting in best.items() if source not in tried]
