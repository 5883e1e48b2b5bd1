"""Searches for a faster schedule of one kernel: by one search, or by all of them at an equal budget.

RUN/METHOD holds the journal of all measurements, metrics.jsonl, the best edit as edit.json, and as found.json how fast
it was when it was measured anew.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeRemainingColumn

from cudal2.config import SassConfig, identity
from cudal2.records import Edit, Measured, Status, to_json
from cudal2.sass import searches
from cudal2.sass.game.play import Play
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.game.task import Budget, Journal, Line, Spent, Task
from cudal2.sass.polish.subject import Judge, Subject, opened
from cudal2.tracking import Metrics

FINALISTS = 4
"""So many of a search's best edits are measured again before one is confirmed: of 500 that were measured in a few pairs
each the first is so partly by luck; on an H200 by 0.2 to 0.6%."""
KEPT = ("metrics.jsonl", "journal.jsonl", "edit.json", "found.json")
"""The files that a search uploads to Weights & Biases; the journal's first line has its configuration."""


class Found(msgspec.Struct, frozen=True):
    """The result of a search: its best edit, as `measured` in the search, and `confirmed` afterwards: neither is the
    measurement by which it was chosen among the finalists. None where no edit was right. `seconds` is the time of
    measuring."""

    method: str
    measurements: int
    seconds: float
    edit: Edit | None = None
    measured: Measured | None = None
    confirmed: Measured | None = None


def play(subject: Subject, config: SassConfig) -> tuple[list[Found], list[Measured]]:
    """The result of `search.method`, and measurements of the unedited kernel beside itself; continues a stopped search.

    Raises ValueError for an unknown method, or a folder in which something else was played.
    """
    return compare(subject, config, (config.search.method,))


def compare(
    subject: Subject, config: SassConfig, methods: Sequence[str] = searches.METHODS
) -> tuple[list[Found], list[Measured]]:
    """The results of several searches with equal budgets, and measurements of the unedited kernel beside itself."""
    functions = {method: searches.find(method) for method in methods}  # so a missing package is found before measuring
    folder = Path(config.run)
    start = Play(subject.listing)
    simulated = Simulated(subject.listing, config.machine)
    with _alone(folder), opened(subject, config) as judge:
        floor = [judge.floor() for _ in range(config.floor)]
        results = [_search(method, functions[method], start, simulated, judge, config) for method in methods]
    return results, floor


def _search(
    method: str,
    search: Callable[[Task], None],
    start: Play,
    simulated: Simulated,
    judge: Judge,
    config: SassConfig,
) -> Found:
    folder, limit = Path(config.run) / method, config.search.measurements
    journal = Journal(folder / "journal.jsonl", _head(start, config, method, judge.environment))
    metrics = Metrics(folder, config.tracker, len(journal.known), msgspec.to_builtins(config))
    started = time.perf_counter()
    with _bar(method, limit) as show:

        def report(budget: Budget, line: Line, new: bool) -> None:
            show(len(budget.seen), budget.best)
            if new:
                metrics.log(_row(method, budget, line, time.perf_counter() - started), durable=False)

        budget = Budget(journal, judge.measure, limit, report)

        task = Task(start.copy(), config.search, config.seed, budget, simulated.of)
        try:
            with suppress(Spent):
                search(task)
            result = _result(folder, method, budget, judge)
            if metrics.wandb:
                metrics.wandb.show("kernels", _kernels(budget, config.tracker.kernels))
                metrics.wandb.keep("run", {name: folder / name for name in KEPT})
        finally:
            metrics.close()
    return result


def _result(folder: Path, method: str, budget: Budget, judge: Judge) -> Found:
    """The result of a search that is over, as its folder holds it; measured and kept there, where it does not yet."""
    place = folder / "found.json"
    if place.exists():
        known = msgspec.json.decode(place.read_bytes(), type=Found)
        if known.measurements == len(budget.seen) and (known.edit is None or known.edit in budget.seen):
            return known
    result = Found(method, len(budget.seen), sum(line.seconds for line in budget.seen.values()))
    if best := _best(budget, judge):
        (folder / "edit.json").write_text(to_json(best.edit) + "\n")
        confirmed = judge.confirm(best.edit)
        result = replace(result, edit=best.edit, measured=best.measured, confirmed=confirmed)
    # At once: the searches that follow may take an hour, and be killed.
    fresh = place.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    fresh.replace(place)
    return result


def _ranked(budget: Budget) -> list[Line]:
    """The correct edits, the one with the greatest lower bound of its speedup first."""
    right = [line for line in budget.seen.values() if line.measured.status is Status.OK]
    return sorted(right, key=lambda line: line.measured.low, reverse=True)


def _best(budget: Budget, judge: Judge) -> Line | None:
    """Of the finalists the one that is best when it is measured again; None where no edit was right."""
    finalists = _ranked(budget)[:FINALISTS]
    return max(finalists, key=lambda line: judge.again(line.edit).low, default=None)


def _head(start: Play, config: SassConfig, method: str, environment: str) -> dict[str, Any]:
    """What identifies a search: the kernel, and every key that may change its questions or answers."""
    keys = {key: value for key, value in identity(config).items() if key not in ("search.method", "kernel")}
    if config.judge == "simulator":
        keys = {key: value for key, value in keys.items() if not key.startswith("worker.")}
    what = {"kernel": start.unedited.kernel, "sha256": start.unedited.sha256}
    return {**what, "method": method, "environment": environment, **keys}


def _kernels(budget: Budget, limit: int) -> list[dict[str, Any]]:
    """The `limit` best edits."""
    return [
        {**msgspec.to_builtins(line.measured), "moves": len(line.edit.moves), "edit": to_json(line.edit)}
        for line in _ranked(budget)[:limit]
    ]


def _row(method: str, budget: Budget, line: Line, seconds: float) -> dict[str, Any]:
    measured, best = line.measured, budget.best
    return {
        "step": len(budget.seen),
        "method": method,
        "status": measured.status.value,
        "speedup": measured.speedup,
        "low": measured.low,
        "high": measured.high,
        "best": best.measured.speedup if best else 0.0,
        "moves": len(line.edit.moves),
        "measuring": line.seconds,
        "seconds": seconds,
    }


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder's lock; ValueError where another process plays in it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock").acquire(timeout=0):
            yield
    except Timeout:
        raise ValueError(f"{folder} is being played in by another process; choose another run=") from None


@contextmanager
def _bar(method: str, limit: int) -> Iterator[Callable[[int, Line | None], None]]:
    """A progress bar of the measurements, on a terminal."""
    console = Console(file=sys.stdout, highlight=False)
    columns = (
        f"[bold]{method}",
        BarColumn(),
        "{task.completed}/{task.total}",
        TimeRemainingColumn(),
        "{task.fields[b]}",
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(method, total=limit, b="")

        def show(done: int, best: Line | None) -> None:
            said = f"best {best.measured.speedup:.4f}" if best else ""
            progress.update(bar, completed=done, b=said)

        yield show


def table(results: Sequence[Found], floor: Sequence[Measured]) -> str:
    """A line for each search: the confirmed speedup of its best edit with its interval, and the A/A floor: how far the
    unedited kernel beside itself was from 1 at most, "-" where that was not measured."""
    aside = f"{noise(floor):.4f}" if floor else "-"
    lines = [
        f"{'method':<10} {'measured':>8} {'speedup':>8} {'low':>8} {'high':>8} {'in search':>9} {'A/A ±':>7}  moves"
    ]
    for result in results:
        head = f"{result.method:<10} {result.measurements:>8}"
        confirmed, measured = result.confirmed, result.measured
        if confirmed is None or measured is None or result.edit is None:
            lines.append(f"{head} no edit was right")
        elif confirmed.status is not Status.OK:
            lines.append(f"{head} the best edit did not hold: {confirmed.status} {confirmed.reason}")
        else:
            figures = f"{confirmed.speedup:>8.4f} {confirmed.low:>8.4f} {confirmed.high:>8.4f} {measured.speedup:>9.4f}"
            lines.append(f"{head} {figures} {aside:>7}  {len(result.edit.moves)}")
    return "\n".join(lines)


def noise(floor: Sequence[Measured]) -> float:
    """How far the unedited kernel beside itself was from 1 at most, as a share; 0 where that was not measured."""
    return max(
        (abs(math.log(measured.speedup)) for measured in floor if measured.status is Status.OK and measured.speedup),
        default=0.0,
    )
