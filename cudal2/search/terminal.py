"""What a search found for a problem, and how a terminal shows it: one line while it runs, one line for each result."""

import time

import msgspec
from rich.console import Console
from rich.status import Status

from cudal2.config import SearchConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Timing, Verdict
from cudal2.search.proposer import Mutated, answered, made
from cudal2.search.trials import identity


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
