"""What a terminal shows of an evaluation: its progress, a line or a table's row for each shape, and the summary."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from cudal2.evaluation import tables
from cudal2.evaluation.pace import Pace, said
from cudal2.evaluation.records import Row, why
from cudal2.evaluation.summary import summarise
from cudal2.problem import Problem
from cudal2.records import Timing

_PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}


class Shown:
    """The progress of an evaluation and the time left: a bar on a terminal, elsewhere a line for each shape."""

    def __init__(self, console: Console, shapes: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self.bar.add_task("eval", total=shapes, left="")
        self.pace = Pace(shapes)
        self._shapes, self._done, self._new, self._started = shapes, 0, 0, time.monotonic()
        self._seconds: Counter[str] = Counter()
        self._verdicts = 0

    def add(self, problem: Problem, row: Row | None, new: bool = True) -> None:
        """Counts one shape as done; `new` where it has no row from an earlier evaluation."""
        self._done += 1
        self._new += new
        left = said(self.pace.left())
        self.bar.update(self._task, advance=1, left=left)
        if not self.bar.console.is_terminal:
            far = f"{self._done}/{self._shapes}" + (f", {left}" if left else "")
            self.bar.console.print(f"eval {far}  {describe(problem, row)}", **_PLAIN)

    def took(self, seconds: Mapping[str, float]) -> None:
        """Adds the seconds of a verdict, by stage."""
        self._seconds.update(seconds)
        self._verdicts += bool(seconds)

    def end(self) -> None:
        """Prints the seconds by stage."""
        if self._verdicts:
            means = {stage: total / self._verdicts for stage, total in self._seconds.most_common()}
            parts = ", ".join(f"{stage} {mean:.2f}" for stage, mean in means.items())
            wall = time.monotonic() - self._started
            text = f"{self._new} shapes in {wall:.0f} s; seconds of a verdict, what is done ahead included: {parts}"
            self.bar.console.print(text, **_PLAIN)


def describe(problem: Problem, row: Row | None) -> str:
    """One row as one plain line: the speedup over the fastest baseline under each protocol."""
    if row is None:
        return f"{problem.name:<24} no measurement (harness fault); evaluate again to retry"
    if row.timing is None:
        return f"{problem.name:<24} {row.status}" + (f": {why(row)}" if row.reason else "")
    against = "  ".join(f"{t.protocol} {_interval(t)}" for t in row.fastest)
    return f"{problem.name:<24} {row.timing.candidate_us:>10.1f} µs  {against}"


def _interval(timing: Timing) -> str:
    return f"{timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}] {timing.baseline}"


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print the rows (a table on a terminal) and their summary, overall and by decade of FLOP."""
    console = console or Console()
    if console.is_terminal:
        protocols = list(dict.fromkeys(timing.protocol for row in rows for timing in row.timings))
        table = Table("problem", "µs", *(f"{name}: speedup over the fastest baseline" for name in protocols))
        for row in rows:
            if row.timing is None:
                table.add_row(row.problem.name, row.status)
                continue
            cells = {t.protocol: _interval(t) for t in row.fastest}
            microseconds = f"{row.timing.candidate_us:.1f}"
            table.add_row(row.problem.name, microseconds, *(cells.get(name, "") for name in protocols))
        console.print(table)
    groups = {f"{decade} FLOP": part for decade, part in tables.by_decade(rows).items()} | {"all": rows}
    summaries = {name: summary for name, part in groups.items() if (summary := summarise(part))}
    if not summaries:
        console.print("no correct kernel on any of these shapes")
        return
    for name, summary in summaries.items():
        console.print(
            f"{name:<14} {summary.shapes:>4} shapes  geometric mean {summary.geomean:.3f}  wins {summary.wins:4.0%}"
            f"  certain {summary.sure_wins:4.0%}  with fall-back {summary.dispatched:.3f}",
            **_PLAIN,
        )
    console.print(f"\n{tables.text(rows)}", **_PLAIN)
