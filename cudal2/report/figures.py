"""Pictures that compare runs or searches: plain functions from numbers to matplotlib figures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cudal2.report.steps import Step, mean

INK, FAINT, BLUE, ORANGE, GREEN = "#1f2933", "#c3ccd5", "#0b62a4", "#c2540a", "#1b7f5c"
SIZE = (7.2, 3.8)
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


@contextmanager
def _axes() -> Iterator[tuple[Figure, Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(SIZE, layout="constrained")
        yield figure, figure.add_subplot()


def save(figure: Figure, path: Path) -> None:
    """Write the figure to a file, in the format its suffix names."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


SMOOTH = 6
"""Steps over which the lines of a comparison are averaged, since each step samples only some of the shapes."""


def comparison(runs: Mapping[str, Sequence[Step]]) -> Figure:
    """Mean speedup over all samples, by step: dots for steps, a line for each run (its trailing mean over SMOOTH)."""
    with _axes() as (figure, axes):
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
    """Best so far over kernels judged per shape, one line for each search; the values are (mean over shapes, lower end,
    upper end of its interval)."""
    with _axes() as (figure, axes):
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
