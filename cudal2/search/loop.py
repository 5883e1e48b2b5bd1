"""A search: the fastest candidate for each problem that a proposer finds within a budget of kernels or of time.

It is a tool for users, and it compares a trained policy with random settings and evolution at an equal number of
kernels.

All problems go through their generations together. A round is one generation of each problem, judged in one batch: so
compilers work ahead of the device, and a source that many problems propose is compiled once. What one problem found in
a round may be tried for others in the next.

The archive is the only state. So a search that was killed proposes its last round again, judges what is missing of
it, and continues as if nothing had happened.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from rich.console import Console

from cudal2 import judging
from cudal2.archive import Archive, selection
from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment
from cudal2.search import proposers
from cudal2.search.proposer import Task, Trial
from cudal2.search.terminal import Live, Result, describe, headline
from cudal2.search.trials import History, affordable, missing, seconds
from cudal2.split import kept_apart
from cudal2.worker.pool.pool import Pool

NOWHERE = Environment("", 0, "", "", "", "")


def check(config: SearchConfig) -> None:
    """Raises ValueError for a search that `run` refuses, before there is a folder for it."""
    _check(config)
    config.shapes.problems()
    with Archive(":memory:") as nothing:
        proposers.make(History(config, NOWHERE, nothing))


def run(
    config: SearchConfig,
    pool: Pool,
    archive: Archive,
    console: Console | None = None,
    others: Sequence[SearchConfig] = (),
) -> list[Result]:
    """Search for every problem of `config.shapes`, or continue where an earlier search stopped.

    What searches of these `others` have tried in this archive, a policy does not propose again.

    A candidate without a verdict (a fault of the harness) is not recorded and may be proposed again.
    The result depends only on the configuration (see `trials.identity`), the environment and the verdicts, and on what
    `others` have tried, not on anything else in the archive.
    Raises ValueError for an unknown method, an endless search or an inconsistent configuration; HarnessFault where no
    kernel of a round could be judged.
    """
    _check(config)
    console = console or Console()
    problems = list(dict.fromkeys(config.shapes.problems()))
    here = pool.environment()
    before_it = tuple(History(other, here, archive) for other in others)
    history = History(config, here, archive, pool.ahead, before_it)
    proposer = proposers.make(history)
    tasks = [Task(problem, _lenders(problem, problems, config.search.neighbours)) for problem in problems]
    trials = {problem: history.trials(problem) for problem in problems}
    before = sum(map(len, trials.values()))
    console.print(headline(config, before), highlight=False, markup=False, soft_wrap=True)
    with console.status("") as status:
        live = Live(console, status, {problem: [trial.low for trial in trials[problem]] for problem in problems})
        for generation in count(min((_reached(trials[task.problem]) for task in tasks), default=0)):
            started = time.perf_counter()
            live.begin(generation)
            lacking = [missing(config.search, proposer, task, generation, trials) for task in tasks]
            tasks = [task for task, new in zip(tasks, lacking) if new is not None]
            if not tasks:
                break
            asked = {candidate: trial for new in lacking if new for candidate, trial in new.items()}
            if asked:
                _judge(asked, pool, history, live, started)
                trials |= {problem: history.trials(problem) for problem in {candidate.problem for candidate in asked}}
    results = [_result(history, problem, trials[problem]) for problem in problems]
    width = max((len(problem.name) for problem in problems), default=0)
    for result in results:
        console.print(describe(result, width), highlight=False, markup=False, soft_wrap=True)
    return results


def _check(config: SearchConfig) -> None:
    """Raises ValueError, with a remedy, for values that make no sense, alone or together."""
    search = config.search
    if search.generation < 1 or not (search.kernels or search.seconds):
        raise ValueError("search.generation must be positive, and search.kernels or search.seconds too")
    if min(search.kernels, search.seconds, search.neighbours) < 0:
        raise ValueError("search.kernels, search.seconds and search.neighbours must not be negative")
    if config.turns.count > 1 and search.method != "policy":
        raise ValueError(f"turns.count={config.turns.count} is for search.method=policy, not {search.method}")
    config.turns.check(config.policy)
    if not config.worker.protocols:
        raise ValueError("worker.protocols=[] times nothing, so that a search has no best; name one, such as [device]")


def _judge(asked: Mapping[Candidate, Trial], pool: Pool, history: History, live: Live, started: float) -> None:
    """Judges one round; in the end each verdict is archived with an equal share of the wall time since `started`."""
    archive = history.archive
    origins = [(candidate, history.origin(candidate.problem, trial)) for candidate, trial in asked.items()]
    verdicts = judging.judge(pool, archive, origins, live.judged)
    reached = [(candidate, verdict) for candidate, verdict in zip(asked, verdicts) if verdict is not None]
    share = (time.perf_counter() - started) / len(reached)
    for candidate, verdict in reached:
        archive.add(verdict, candidate, history.origin(candidate.problem, asked[candidate], share))


def _lenders(problem: Problem, problems: Iterable[Problem], neighbours: int) -> tuple[Problem, ...]:
    """The nearest other problems of this search; none that is kept apart lends what was found for it."""
    # Sorted, so that the order in which shapes are named does not decide between equally near ones.
    nearest = selection.by_distance(problem, sorted(problems))
    return tuple(other for other in nearest if other != problem and not kept_apart(other))[:neighbours]


def _reached(trials: Sequence[Trial]) -> int:
    """The generation to continue with: the last one, for it may lack kernels."""
    return max((trial.generation for trial in trials), default=0)


def _result(history: History, problem: Problem, trials: Sequence[Trial]) -> Result:
    trials = affordable(history.config.search, trials)
    top = max(trials, key=lambda trial: trial.low, default=None)
    if top is None or not top.low:
        return Result(problem, None, None, len(trials), seconds(trials))
    verdict = history.verdict(problem, top)
    return Result(problem, top.prompt, verdict.timing if verdict else None, len(trials), seconds(trials))
