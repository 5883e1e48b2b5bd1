"""Compares searches of the same shapes at equal budgets: the best speedup over the number of kernels judged; and draws
pictures that compare runs or searches.

What a policy wrote for an evaluation counts as a search: so many samples a shape, none of which knows of another.
Folders whose names differ only by a number at the end, such as evolution-0 and evolution-1, are seeds of one search and
make one curve. In a best-so-far a speedup below 1 counts as 1.00, since nobody would use that kernel. First samples
count as they are, failures as 0. The 95% intervals are bootstrapped over shapes (Efron): proposers differ far more
between shapes than between seeds.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cudal2.archive.records import Origin, Sample
from cudal2.archive.store import Archive
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.report.steps import Step, mean, quantile
from cudal2.search.trials import which

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


DRAWS = 1000
FALLBACK = 1.0
BUDGETS = (1, 16, 64, 256)
"""The budgets, in kernels per shape, that have a column in the table if all searches of a line reached them."""

Searches = Mapping[str, Mapping[Problem, Sequence[Sequence[float]]]]
"""By name and problem, for each seed: the speedups of the kernels in the order of trials, 0 for a failure."""


class Estimate(NamedTuple):
    """A mean over shapes with its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def compare(folders: Sequence[Path], out: Path) -> str:
    """Draw the curves of the searches in these folders to `out` (PNG, SVG or PDF) and return a table in Markdown.

    Raises ValueError for a folder without a search, with several or with several series of samples, for searches of
    different environments or without a shape in common; HarnessFault where the picture cannot be written.
    """
    searches = load(folders)
    curves = {name: curve(list(shapes.values())) for name, shapes in searches.items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save(budgets(curves), out)
    except OSError as error:
        raise HarnessFault(f"{out} cannot be written: {error}", "Choose another place with out=") from error
    return table(searches, curves)


def load(folders: Sequence[Path]) -> Searches:
    """The searches in these folders on the shapes that they have in common, smallest work first."""
    searches: dict[str, dict[Problem, list[list[float]]]] = {}
    environments: set[str] = set()
    for folder in folders:
        with Archive.of(folder, create=False) as archive:
            samples = list(archive.samples("search")) or list(archive.samples("eval"))
        if len({_which(sample.origin) for sample in samples}) != 1:
            raise ValueError(f"{folder} holds no search, or several; give each a folder of its own: run=FOLDER")
        environments |= {sample.fingerprint for sample in samples}
        seeds = searches.setdefault(re.sub(r"[-_]?\d+$", "", folder.resolve().name) or folder.resolve().name, {})
        for problem, values in _speeds(samples).items():
            seeds.setdefault(problem, []).append(values)
    if len(environments) > 1:
        raise ValueError("these searches were measured in different environments and do not compare")
    common = set.intersection(*map(set, searches.values()))
    if not common:
        raise ValueError("these searches have no shape in common")
    order = sorted(common, key=lambda problem: (problem.flop, problem))
    return {name: {problem: shapes[problem] for problem in order} for name, shapes in searches.items()}


def _which(origin: Origin) -> str:
    """What the samples of one search have in common, or those that a policy wrote for one evaluation."""
    return which(origin.run) if origin.kind == "search" else origin.run.partition(" ")[2]


def within(archive: Archive, fingerprint: str, together: bool = False) -> Searches:
    """The searches of an archive in that environment, by method; if several have one method, by its digest too.

    With `together` they are a campaign's. Then a method's searches of slices, which have no shape in common, count as
    one, and the methods are compared on the shapes that all of them have: not all have done the latest slice.
    """
    runs: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in archive.samples("search"):
        if sample.fingerprint == fingerprint:
            runs[sample.origin.policy or "search"][which(sample.origin.run)].append(sample)
    by_method: dict[str, dict[Problem, list[list[float]]]] = {}
    for method, searches in runs.items():
        each = {digest: _speeds(samples) for digest, samples in searches.items()}
        apart = len(set().union(*each.values())) == sum(map(len, each.values()))
        alone = len(each) == 1 or (together and apart)
        for digest, speeds in each.items():
            shapes = by_method.setdefault(method if alone else f"{method} {digest}", {})
            shapes.update({problem: [values] for problem, values in speeds.items()})
    beside = [by_method[method] for method in runs if together and method in by_method]
    common = set.intersection(*map(set, beside)) if beside else set()
    for shapes in beside if common else ():
        for problem in set(shapes) - common:
            del shapes[problem]
    return by_method


def _speeds(samples: Iterable[Sample]) -> dict[Problem, list[float]]:
    speeds: dict[Problem, list[float]] = {}
    for sample in sorted(samples, key=lambda sample: (sample.origin.step, sample.origin.index)):
        speeds.setdefault(sample.problem, []).append(sample.speedup or 0.0)
    return speeds


def curve(shapes: Sequence[Sequence[Sequence[float]]]) -> list[Estimate]:
    """The mean over shapes of the best so far after 1, 2, … kernels per shape, up to the shortest search."""
    length = min(len(values) for seeds in shapes for values in seeds)
    return [estimate([mean([max(FALLBACK, *v[:n]) for v in seeds]) for seeds in shapes]) for n in range(1, length + 1)]


def first(shapes: Sequence[Sequence[Sequence[float]]]) -> Estimate:
    """The mean speed of the first kernels."""
    return estimate([mean([values[0] for values in seeds]) for seeds in shapes])


def correct(shapes: Sequence[Sequence[Sequence[float]]]) -> float:
    """The share of all kernels that were right."""
    return mean([float(speed > 0) for seeds in shapes for values in seeds for speed in values])


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of `values`, one per shape, with its interval."""
    means = (_draws(len(values)) @ np.array(values) / len(values)).tolist()
    return Estimate(mean(values), quantile(means, 0.025), quantile(means, 0.975))


@cache
def _draws(count: int) -> np.ndarray:
    """Bootstrap weights [DRAWS, count]: how often each value is drawn; always the same."""
    rng = random.Random(0)
    drawn = (rng.choices(range(count), k=count) for _ in range(DRAWS))
    return np.array([np.bincount(places, minlength=count) for places in drawn], dtype=float)


def table(searches: Searches, curves: Mapping[str, Sequence[Estimate]]) -> str:
    """A line for each search: shapes, seeds, the share of its kernels that were right, the first kernel, and the best
    of each of BUDGETS that it reached."""
    budgets = [n for n in BUDGETS[1:] if any(len(curve) >= n for curve in curves.values())]
    head = ["search", "shapes", "seeds", "right", "first kernel", *(f"best of {n}" for n in budgets)]
    lines = [head, ["---"] * len(head)]
    for name, shapes in searches.items():
        reached = [str(curves[name][n - 1]) if len(curves[name]) >= n else "" for n in budgets]
        seeds, speeds = max(map(len, shapes.values())), list(shapes.values())
        lines.append([name, str(len(shapes)), str(seeds), f"{correct(speeds):.0%}", str(first(speeds)), *reached])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
