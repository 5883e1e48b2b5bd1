"""A search: the fastest candidate for each problem that a proposer finds within a budget of kernels or of time.

It is a tool for users, and it compares a trained policy with random settings and evolution at an equal number of
kernels.

All problems go through their generations together. A round is one generation of each problem, judged in one batch: so
compilers work ahead of the device, and a source that many problems propose is compiled once. What one problem found in
a round may be tried for others in the next.

The archive is the only state. So a search that was killed proposes its last round again, judges what is missing of
it, and continues as if nothing had happened.

A terminal shows it in one line while it runs, and in one line for each round and for each result.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

import msgspec
from rich.console import Console
from rich.status import Status

from cudal2 import judging
from cudal2.archive import Archive, selection
from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Timing, Verdict
from cudal2.search import proposers, rerank
from cudal2.search.proposer import Mutated, Task, Trial, answered, made
from cudal2.search.rounds import rounds
from cudal2.search.trials import History, affordable, identity, missing, seconds, settled
from cudal2.split import kept_apart
from cudal2.worker.pool.pool import Pool


class Result(msgspec.Struct, frozen=True):
    """The result for a problem after `kernels` verdicts and `seconds`: the prompt or setting of the fastest kernel, as
    its proposer recorded it, and its timing; both None where no kernel was correct."""

    problem: Problem
    best: str | None
    timing: Timing | None
    kernels: int
    seconds: float


_USUAL = ("worker.", "policy.", "prompt.", "search.folder")
SHOWN = 80
"""Characters of a proposer's record that fit into a line."""


def headline(config: SearchConfig, kernels: int) -> str:
    """Which search this is and how many `kernels` it has judged before: the number of shapes, then as overrides all
    keys that identify it. Keys of worker, policy and prompt are left out where they have their defaults."""
    usual = identity(SearchConfig(run=""))
    told = {
        key: value
        for key, value in identity(config).items()
        if key != "shapes" and not (key.startswith(_USUAL) and value == usual.get(key))
    }
    overrides = [f"{key}={_written(value)}" for key, value in told.items()]
    if not any(key.startswith("worker.") for key in told):
        overrides.append("worker=default")
    count = len(set(config.shapes.problems()))
    return f"{count} shape{'s' * (count != 1)}, {kernels} kernels so far: {' '.join(overrides)}"


def _written(value: object) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)


def describe(result: Result, width: int = 0) -> str:
    """One result as one plain line; `width` is that of the column of names."""
    spent = f"{result.kernels:>5} kernels {result.seconds:>7.1f} s"
    best, timing = result.best, result.timing
    if best is None or timing is None:
        return f"{result.problem.name:<{width}}  {'no correct kernel':<24}  {spent}"
    speedup = f"{timing.speedup:6.3f} × [{timing.low:.3f}, {timing.high:.3f}]"
    return f"{result.problem.name:<{width}}  {speedup:<24}  {spent}  {_made(best)}"


def _made(prompt: str) -> str:
    """How a kernel was made: its family and knobs; or its mutations and its parent; or the verdict that it answers; or
    the beginning of any other record."""
    if turn := answered(prompt):
        prompt = f"after {turn.parent[:12]}: {turn.told}"
    try:
        making = made(prompt)
    except msgspec.DecodeError:  # ValidationError is one of them
        return " ".join(prompt.split())[:SHOWN]
    if isinstance(making, Mutated):
        return f"{making.origin.family}  {', '.join(making.kinds)} of {making.parent}"
    return f"{making.family}  " + " ".join(f"{k}={value}" for k, value in making.knobs.items() if k != "style")


EVERY = 60.0
"""Seconds between printed lines where the output is not a terminal."""


class Live:
    """The status line of a running search: the round, the kernels judged, and the problems won (whose best kernel has
    an interval above 1)."""

    def __init__(self, console: Console, status: Status, lows: dict[Problem, list[float]]) -> None:
        self._console, self._status, self._problems = console, status, len(lows)
        self._shown = time.monotonic()
        self._kernels = sum(map(len, lows.values()))
        self._won = {problem for problem, found in lows.items() if max(found, default=0.0) > 1}

    def begin(self, generation: int) -> None:
        self._round = generation + 1
        self._show()

    def judged(self, candidate: Candidate, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        self._kernels += 1
        if verdict.timing and verdict.timing.low > 1:
            self._won.add(verdict.problem)
        self._show()

    def _show(self) -> None:
        won = f"{len(self._won)} of {self._problems} problems won"
        line = f"round {self._round}  {self._kernels} kernels  {won}"
        self._status.update(line)
        if not self._console.is_terminal and time.monotonic() - self._shown >= EVERY:
            self._shown = time.monotonic()
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


NOWHERE = Environment("", 0, "", "", "", "")


def check(config: SearchConfig) -> None:
    """Raises ValueError for a search that `run` refuses, before there is a folder for it."""
    config = settled(config)
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
    config = settled(config)
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
    paid = {problem: affordable(config.search, trials[problem]) for problem in problems}
    for added in rounds(paid):
        console.print(str(added), highlight=False, markup=False, soft_wrap=True)
    results = [_result(history, problem, paid[problem]) for problem in problems]
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
    config.turns.check(config.policy, config.prompt)
    rerank.check(config)
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
    top = max(trials, key=lambda trial: trial.low, default=None)
    if top is None or not top.low:
        return Result(problem, None, None, len(trials), seconds(trials))
    verdict = history.verdict(problem, top)
    return Result(problem, top.prompt, verdict.timing if verdict else None, len(trials), seconds(trials))
