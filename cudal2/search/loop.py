"""Knob search: the fastest setting of the kernel families for each problem, found by trying, without a model.

A user's tool, and the baseline that a trained policy has to beat at the same number of kernels.

All problems go through their generations in step. A round is one generation of each of them, judged in one batch, so
that compilers work ahead of the device and a source that many problems want is compiled once; what it found, they
lend to each other in the next (see `generation`).

The archive is all the state there is. A search that was killed therefore proposes its last round once more, judges
what is missing of it, and goes on as if nothing had happened.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from rich.console import Console

from cudal2 import corpus
from cudal2.archive import Archive, selection
from cudal2.config import SearchConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, Verdict
from cudal2.search.found import Found, Live, describe, headline
from cudal2.search.generation import Task, affordable, missing, seconds
from cudal2.search.history import History
from cudal2.search.proposals import Trial
from cudal2.target import find
from cudal2.worker.pool import Pool


def run(config: SearchConfig, judge: Pool, archive: Archive, console: Console | None = None) -> list[Found]:
    """Search for every problem of `config.shapes`, or continue where an earlier search stopped.

    A setting that `judge` reached no verdict on (a fault of the harness) is not recorded and may come again.
    What is found is a function of the configuration (see `history.identity`), the environment and the verdicts:
    nothing else that the archive holds has a part in it.
    Raises ValueError for a family that is unknown, a search without end or one that cannot be as it is asked for,
    HarnessFault where not one kernel of a round could be judged.
    """
    _check(config)
    console = console or Console()
    families = {problem: _families(config, problem) for problem in config.shapes.problems()}
    environment = judge.environment()
    history = History(config, environment.fingerprint, archive)
    neighbours = config.search.neighbours
    tasks = [Task(problem, families[problem], _lenders(problem, families, neighbours)) for problem in families]
    trials = {problem: history.trials(problem) for problem in families}
    before = sum(map(len, trials.values()))
    console.print(headline(config, before), highlight=False, markup=False, soft_wrap=True)
    with console.status("") as status:
        live = Live(console, status, {problem: [trial.low for trial in trials[problem]] for problem in families})
        for generation in count(min((_reached(trials[task.problem]) for task in tasks), default=0)):
            started = time.perf_counter()
            live.begin(generation)
            lacking = [missing(config, environment.device, task, generation, trials) for task in tasks]
            tasks = [task for task, new in zip(tasks, lacking) if new is not None]
            if not tasks:
                break
            asked = {candidate: trial for new in lacking if new for candidate, trial in new.items()}
            if asked:
                _judge(asked, judge, history, live, started)
                trials |= {problem: history.trials(problem) for problem in {one.problem for one in asked}}
    found = [_found(history, problem, trials[problem]) for problem in families]
    width = max((len(problem.name) for problem in families), default=0)
    for one in found:
        console.print(describe(one, width), highlight=False, markup=False, soft_wrap=True)
    return found


def _check(config: SearchConfig) -> None:
    """ValueError, with a remedy, for what cannot be searched for or would be done otherwise than it is asked for."""
    search = config.search
    if search.generation < 1 or not (search.kernels or search.seconds):
        raise ValueError("search.generation must be positive, and search.kernels or search.seconds too")
    if min(search.kernels, search.seconds, search.neighbours) < 0:
        raise ValueError("search.kernels, search.seconds and search.neighbours must not be negative")
    if search.method == "random" and (search.prior != "none" or search.neighbours):
        raise ValueError("search.method=random starts and goes on by chance: add search.prior=none search.neighbours=0")
    if not config.worker.protocols:
        raise ValueError("worker.protocols=[] times nothing, so that a search has no best; name one, such as [device]")


def _judge(asked: Mapping[Candidate, Trial], judge: Pool, history: History, live: Live, started: float) -> None:
    """One round: archive each verdict as it is reached, and in the end its share of the wall time since `started`."""

    def keep(candidate: Candidate, verdict: Verdict | None) -> None:
        if verdict is not None:
            history.add(verdict, candidate, asked[candidate])
            live.judged(verdict)

    verdicts = judge.evaluate(list(asked), keep)
    reached = [(candidate, verdict) for candidate, verdict in zip(asked, verdicts) if verdict is not None]
    if not reached:
        remedy = "Run `cudal2 doctor`, then start again to continue"
        some = next(iter(asked)).problem.name
        raise judge.fault or HarnessFault(f"no kernel could be judged, for {some} or any other problem", remedy)
    share = (time.perf_counter() - started) / len(reached)
    for candidate, verdict in reached:
        history.add(verdict, candidate, asked[candidate], share)


def _families(config: SearchConfig, problem: Problem) -> tuple[Family, ...]:
    known = corpus.families(find(config.target))
    names = config.search.families or [family.name for family in known]
    if unknown := set(names) - {family.name for family in known}:
        some = ", ".join(family.name for family in known)
        raise ValueError(f"{config.target} has no families {', '.join(sorted(unknown))}; choose from {some}")
    found = tuple(family for family in known if family.name in names and problem.layout in family.layouts)
    if not found:
        raise ValueError(f"no family among {', '.join(names)} has a {problem.layout} kernel")
    return found


def _lenders(problem: Problem, problems: Iterable[Problem], neighbours: int) -> tuple[Problem, ...]:
    """The nearest other problems of this search."""
    # Sorted, so that of equally near ones the order in which they were named decides nothing.
    found = selection.by_distance(problem, sorted(problems))
    return tuple(other for other in found if other != problem)[:neighbours]


def _reached(trials: Sequence[Trial]) -> int:
    """The generation to go on with: the last one may lack kernels."""
    return max((trial.generation for trial in trials), default=0)


def _found(history: History, problem: Problem, trials: Sequence[Trial]) -> Found:
    trials = affordable(history.config.search, trials)
    top = max(trials, key=lambda trial: trial.low, default=None)
    if top is None or not top.low:
        return Found(problem, None, None, len(trials), seconds(trials))
    return Found(problem, top.setting, history.timing(problem, top), len(trials), seconds(trials))
