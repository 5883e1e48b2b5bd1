"""Figures of a run as standalone matplotlib figures: plain functions from numbers to pictures.

All speedups are over the fastest baseline; a sample without a correct kernel counts as 0 in a mean.
"""

import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from cudal2.records import Status, Timing

INK, FAINT, BLUE, ORANGE, GREEN = "#1f2933", "#c3ccd5", "#0b62a4", "#c2540a", "#1b7f5c"
SIZE = (5.8, 3.3)
STATUS_COLORS = {
    Status.OK: GREEN,
    Status.IMPLAUSIBLE: "#6b4c9a",
    Status.IMPRECISE: "#e3b505",
    Status.WRONG: "#e08e2b",
    Status.OUT_OF_BOUNDS: "#c2540a",
    Status.TIMEOUT: "#a63a50",
    Status.LAUNCH_ERROR: "#7c2f3e",
    Status.PLAN_ERROR: "#57606a",
    Status.COMPILE_TIMEOUT: "#8c959f",
    Status.COMPILE_ERROR: "#afb8c1",
    Status.REJECTED: "#ced5dc",
    Status.NO_SOURCE: "#e4e8ec",
}
_STYLE: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e9edf1",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
}


class Step(msgspec.Struct, frozen=True):
    """What one training step's samples earned: rewards, speedups (0 for a failure) and statuses."""

    step: int
    rewards: tuple[float, ...]
    speedups: tuple[float, ...]
    statuses: Counter[Status]

    @property
    def working(self) -> tuple[float, ...]:
        return tuple(value for value in self.speedups if value > 0)


def mean(values: Sequence[float]) -> float:
    """NaN of nothing, which a plot leaves out."""
    return sum(values) / len(values) if values else math.nan


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of `values` lies (nearest rank); NaN of nothing."""
    return sorted(values)[round(share * (len(values) - 1))] if values else math.nan


@contextmanager
def _axes(size: tuple[float, float] = SIZE) -> Iterator[tuple[Figure, Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(size, layout="constrained")
        yield figure, figure.add_subplot()


def svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element for a page; `name` keeps its ids apart from those of other figures."""
    text = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    element = text.getvalue()[text.getvalue().index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", element)


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a file, in the format its suffix names."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


def rewards(steps: Sequence[Step]) -> Figure:
    """Mean reward by step, with the spread between its samples (10th to 90th percentile)."""
    with _axes() as (figure, axes):
        _band(axes, steps, [step.rewards for step in steps], BLUE, "mean reward")
        axes.set(xlabel="step", ylabel="reward")
        axes.legend(loc="best")
    return figure


def speedups(steps: Sequence[Step]) -> Figure:
    """Mean speedup by step over all samples and over the correct ones, and the best so far."""
    with _axes() as (figure, axes):
        x = [step.step for step in steps]
        best = [max(max(s.speedups, default=0.0) for s in steps[: i + 1]) for i in range(len(steps))]
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.step(x, best, where="post", color=ORANGE, linewidth=1.3, label="best so far")
        _band(axes, steps, [step.working for step in steps], GREEN, "correct kernels")
        axes.plot(x, [mean(step.speedups) for step in steps], color=BLUE, linewidth=2, label="all samples")
        axes.set(xlabel="step", ylabel="speedup over the fastest baseline", ylim=(0, None))
        axes.legend(loc="best")
    return figure


def _band(axes: Axes, steps: Sequence[Step], values: Sequence[Sequence[float]], color: str, label: str) -> None:
    x = [step.step for step in steps]
    low, high = ([quantile(v, share) for v in values] for share in (0.1, 0.9))
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0, label="10% to 90%")
    marker = "o" if len(steps) < 3 else ""
    axes.plot(x, [mean(v) for v in values], color=color, linewidth=1.6, label=label, marker=marker)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def statuses(steps: Sequence[Step]) -> Figure:
    """Share of each status by step, stacked, correct kernels at the bottom."""
    with _axes() as (figure, axes):
        x = [step.step for step in steps]
        bottom = [0.0] * len(steps)
        for status, color in STATUS_COLORS.items():
            share = [step.statuses[status] / max(step.statuses.total(), 1) for step in steps]
            if any(share):
                axes.bar(x, share, bottom=bottom, width=1.0, color=color, label=status.replace("_", " "))
                bottom = [a + b for a, b in zip(bottom, share)]
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="step", ylabel="share of samples", ylim=(0, 1))
        axes.grid(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True)
    return figure


def distribution(steps: Sequence[Step]) -> Figure:
    """Speedups of correct kernels in the first and the last third of the steps, as shares of all samples."""
    with _axes() as (figure, axes):
        first, last = thirds(steps)
        parts = {"first third": (first, FAINT), "last third": (last, BLUE)}
        everything = [value for step in steps for value in step.working] or [1.0]
        low, high = math.log2(min(everything)) - 0.05, math.log2(max(everything)) + 0.05
        edges = [2 ** (low + (high - low) * i / 40) for i in range(41)]
        for label, (part, color) in parts.items():
            values = [value for step in part for value in step.working]
            weight = 1 / max(sum(len(step.speedups) for step in part), 1)
            axes.hist(values, edges, weights=[weight] * len(values), color=color, alpha=0.75, label=label)
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set(xlabel="speedup over the fastest baseline", ylabel="share of samples")
        axes.legend(loc="best")
    return figure


def heat_map(cells: Mapping[tuple[int, int], float]) -> Figure:
    """Speedup by (M, N): purple above 1, orange below, white at 1; the colour is the logarithm's."""
    rows, columns = (sorted({mn[axis] for mn in cells}) for axis in (0, 1))
    with _axes((max(2.6, 0.9 + 0.5 * len(columns)), max(1.9, 0.9 + 0.42 * len(rows)))) as (figure, axes):
        grid = [[math.log2(cells[m, n]) if (m, n) in cells else math.nan for n in columns] for m in rows]
        # Drawn cell by cell: an image would reach the page as a data: address, which the page forbids itself.
        axes.pcolormesh(grid, cmap="PuOr", norm=TwoSlopeNorm(0, -2, 2), edgecolors="white", linewidth=1)
        for (m, n), value in cells.items():
            shade = "white" if abs(math.log2(value)) > 1.1 else INK
            place = (columns.index(n) + 0.5, rows.index(m) + 0.5)
            axes.annotate(f"{value:.2f}", place, ha="center", va="center_baseline", fontsize=8, color=shade)
        axes.set_xticks([i + 0.5 for i in range(len(columns))], [str(n) for n in columns])
        axes.tick_params("x", rotation=0 if len(columns) < 7 else 45)
        axes.set_yticks([i + 0.5 for i in range(len(rows))], [str(m) for m in rows])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="N", ylabel="M")
        axes.grid(False)
    return figure


def intervals(timings: Mapping[str, Timing]) -> Figure:
    """Speedup and interval of a few named problems, the first on top."""
    with _axes((SIZE[0], 0.8 + 0.25 * len(timings))) as (figure, axes):
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for place, timing in enumerate(timings.values()):
            color = "#5e3c99" if timing.speedup > 1 else ORANGE
            axes.plot((timing.low, timing.high), (place, place), color=color, linewidth=4, alpha=0.35)
            axes.plot(timing.speedup, place, "o", color=color, markersize=5)
        axes.set_yticks(range(len(timings)), list(timings))
        axes.tick_params("y", length=0)
        axes.invert_yaxis()
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set(xlabel="speedup over the fastest baseline")
    return figure


SMOOTH = 6
"""Steps over which a comparison's lines are averaged, since each step meets only some of the shapes."""


def comparison(runs: Mapping[str, Sequence[Step]]) -> Figure:
    """Mean speedup over all samples by step: a dot for each step, a line for each run, a trailing mean over SMOOTH."""
    with _axes((7.2, 3.8)) as (figure, axes):
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            "fastest baseline", (0, 1), (4, 4), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="left", fontsize=8,
        )  # fmt: skip
        for color, (name, steps) in zip((BLUE, ORANGE, GREEN, "#6b4c9a", "#a63a50") * 9, runs.items()):
            numbers = [step.step for step in steps]
            means = [mean(step.speedups) for step in steps]
            trailing = [mean(means[max(0, last - SMOOTH) : last]) for last in range(1, len(means) + 1)]
            axes.plot(numbers, means, ".", color=color, markersize=4, alpha=0.45)
            axes.plot(numbers, trailing, color=color, linewidth=2, label=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="GRPO step", ylabel="mean speedup (failures count as 0)", ylim=(0, None))
        axes.legend(loc="lower right", title=f"line: last {SMOOTH} steps")
    return figure


def budgets(curves: Mapping[str, Sequence[tuple[float, float, float]]]) -> Figure:
    """Best so far by kernels judged for each shape, mean over shapes, low and high end of its interval: a line each."""
    with _axes((7.2, 3.8)) as (figure, axes):
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for color, (name, points) in zip((BLUE, ORANGE, GREEN, "#6b4c9a", "#a63a50") * 9, curves.items()):
            kernels, (means, lows, highs) = range(1, len(points) + 1), zip(*points)
            axes.fill_between(kernels, lows, highs, color=color, alpha=0.15, linewidth=0)
            axes.plot(kernels, means, color=color, linewidth=2, label=name)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set(xlabel="kernels judged for each shape", ylabel="best so far, at least 1.00, mean over shapes")
        axes.legend(loc="upper left")
    return figure


def thirds(steps: Sequence[Step]) -> tuple[Sequence[Step], Sequence[Step]]:
    """The first and the last third of the steps, at least one step each."""
    size = max(len(steps) // 3, 1)
    return steps[:size], steps[-size:]
