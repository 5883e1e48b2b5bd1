"""What a terminal shows of an evaluation: progress, time left, a line or a table's row for each shape, the summary."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from cudal2.evaluation import tables
from cudal2.evaluation.records import Row, summarise, why
from cudal2.problem import Problem
from cudal2.records import Timing

_PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}


class Pace:
    """The pace of an evaluation of so many `shapes`, by which the rest will take. `clock` returns seconds.

    Shapes come in a stratified order, so the remaining ones are like those before. For each batch of shapes kernels are
    first found, perhaps written by a policy, and then judged one by one, several per shape where they compete.
    """

    def __init__(self, shapes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._ahead, self._shapes, self._kernels, self._judged = shapes, 0, 0, 0
        self._finding = self._judging = 0.0

    def found(self, shapes: int, new: int, kernels: int) -> None:
        """Counts a batch of `shapes`, of which `new` have no row from before, with so many kernels to judge."""
        self._finding += self._lap()
        self._ahead -= shapes
        self._shapes += new
        self._kernels += kernels

    def judged(self) -> None:
        """Counts one verdict on these kernels."""
        self._judging += self._lap()
        self._judged += 1

    def left(self) -> float:
        """Seconds to go, 0 where they are not known yet. Assumes that no shape ahead has a row from before."""
        if not self._judged:
            return 0.0
        each = self._judging / self._judged
        a_shape = (self._finding + self._kernels * each) / self._shapes
        return (self._kernels - self._judged) * each + self._ahead * a_shape

    def _lap(self) -> float:
        before, self._since = self._since, self._clock()
        return self._since - before


def said(seconds: float) -> str:
    """`about 12 min left`; nothing for less than a second."""
    if seconds < 1:
        return ""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"about {seconds / length:.{int(unit == 'h')}f} {unit} left"
    return f"about {seconds:.0f} s left"


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
