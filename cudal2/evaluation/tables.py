"""Speedups over each of the vendor's libraries under each protocol: CUDA-L2's tables (arXiv:2512.02551) of our rows.

`-max` is the faster of the two layouts of B, shape by shape. There are three aggregates: the arithmetic mean over the
shapes that have a correct kernel, as CUDA-L2 publishes it ("+19.8%" is a mean of 1.198); the geometric mean over these;
and the geometric mean over all shapes, where one that is lost or has no kernel counts 1.00, as torch serves it in an
export. Under the host-timed protocols torch.matmul has a figure only where the kernel was called from Python, too
(`cudal2 bench call clocks=RUN`): a call from there does not compare with one from C.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from cudal2 import llm
from cudal2.evaluation.records import Row
from cudal2.problem import LLM_SHAPES, grid, parse
from cudal2.records import Timing
from cudal2.split import kept_apart
from cudal2.worker.cuda.vendor import LAYOUTS, LIBRARIES

PROTOCOLS = ("offline", "server", "device")
MAX = dict(zip(LIBRARIES, ("torch.matmul", "cuBLAS-max", "cuBLASLt-heuristic-max", "cuBLASLt-AutoTuning-max")))
"""The names of the libraries in the tables, each in its faster layout."""
FASTEST = "fastest of them"


class Cell(msgspec.Struct, frozen=True):
    """Speedups of `correct` kernels over one library under one protocol, of `shapes` asked for. A correct kernel that
    was not timed beside that library is left out.

    `wins` is the share of the shapes whose median lies above 1; `fallback` the geometric mean with 1.00 for the rest;
    `lowest` and `highest` are the extremes.
    """

    shapes: int
    correct: int
    mean: float
    geomean: float
    wins: float
    fallback: float
    lowest: float
    highest: float


Table = dict[str, dict[str, Cell]]
"""Cells by library (a value of MAX, or FASTEST), then by protocol; only those that have a correct kernel."""


def library(baseline: str) -> str:
    """The table's name for a baseline: `cublas-tn` is cuBLAS-max, both of a processor's are torch.matmul."""
    for layout in LAYOUTS:
        baseline = baseline.removesuffix(f"-{layout}")
    return MAX.get(baseline, MAX["torch"] if baseline.startswith("torch") else baseline)


def against(row: Row, name: str, protocol: str) -> Timing | None:
    """The row's timing over the faster layout of a library (FASTEST: of all) under a protocol.

    By the host's clock torch.matmul, which is called from Python, is the fastest only where nothing else was timed.
    """
    alike = [t for t in row.timings if t.protocol == protocol and name in (FASTEST, library(t.baseline))]
    return min(
        alike,
        key=lambda timing: (protocol != "device" and library(timing.baseline) == MAX["torch"], timing.baseline_us),
        default=None,
    )


def cell(speedups: Sequence[float], shapes: int) -> Cell | None:
    """The cell for the speedups of correct kernels, of so many shapes; None where there is no correct kernel."""
    if not speedups:
        return None
    return Cell(
        shapes=shapes,
        correct=len(speedups),
        mean=statistics.fmean(speedups),
        geomean=statistics.geometric_mean(speedups),
        wins=sum(speedup > 1 for speedup in speedups) / shapes,
        fallback=math.exp(sum(math.log(max(speedup, 1.0)) for speedup in speedups) / shapes),
        lowest=min(speedups),
        highest=max(speedups),
    )


def table(rows: Sequence[Row]) -> Table:
    """Every library that these rows were timed against, in the order of MAX, under every protocol, as in PROTOCOLS."""
    there = {library(timing.baseline) for row in rows for timing in row.timings}
    names = [*(name for name in MAX.values() if name in there), *sorted(there.difference(MAX.values()))]
    lost = sum(not row.timings for row in rows)  # a right kernel that was not timed beside a library is not lost to it
    cells: Table = {}
    for name in [*names, FASTEST] if len(names) > 1 else names:
        for protocol in PROTOCOLS:
            timings = [timing for row in rows if (timing := against(row, name, protocol))]
            if made := cell([timing.speedup for timing in timings], len(timings) + lost):
                cells.setdefault(name, {})[protocol] = made
    return cells


def by_decade(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each decade of work: `1e8–1e9` FLOP."""
    return {f"1e{decade}–1e{decade + 1}": part for decade, part in _by(rows, lambda row: row.problem.decade).items()}


def by_m(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each M, the number of tokens in a model."""
    return {str(m): part for m, part in _by(rows, lambda row: row.problem.m).items()}


def by_type(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each number type with each epilogue: `bf16, bias`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row.problem.dtype}, {row.problem.epilogue}", []).append(row)
    return groups


def _by(rows: Iterable[Row], number: Callable[[Row], int]) -> dict[int, list[Row]]:
    """The rows by that number, the smallest first."""
    groups: dict[int, list[Row]] = {}
    for row in sorted(rows, key=number):
        groups.setdefault(number(row), []).append(row)
    return groups


def by_list(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each list of shapes: `grid`, each model's layers and, if there are any, other shapes.

    Some layers are on the grid: a model is shown where others of its layers are among the rows.
    """
    lists: dict[str, set[str]] = {"grid": {problem.mnk for problem in grid()}}
    for layer in (*LLM_SHAPES, *llm.names()):
        lists.setdefault(layer.rpartition(".")[0], set()).add(parse(layer).mnk)
    lists["other"] = {row.problem.mnk for row in rows}.difference(*lists.values())
    parts = {name: [row for row in rows if row.problem.mnk in shapes] for name, shapes in lists.items()}
    alone = {name for name in llm.models() if all(row.problem.mnk in lists["grid"] for row in parts[name])}
    return {name: part for name, part in parts.items() if part and name not in alone}


def by_split(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of shapes that are kept apart from all learning and tuning, and those of the others."""
    parts: dict[str, list[Row]] = {"kept apart": [], "others": []}
    for row in rows:
        parts["kept apart" if kept_apart(row.problem) else "others"].append(row)
    return {name: part for name, part in parts.items() if part}


GROUPINGS = {"FLOP": by_decade, "M": by_m, "list": by_list, "type": by_type, "split": by_split}


def text(rows: Sequence[Row]) -> str:
    """All tables in Markdown: all shapes, library by library, then each protocol by decade of work, by M, by list of
    shapes, by number type and by split. "" without a correct kernel."""
    whole = table(rows)
    if not whole:
        return ""
    correct = sum(bool(row.timings) for row in rows)
    parts = [
        f"Speedups on {len(rows)} shapes, {correct} of them with a correct kernel: their mean, as CUDA-L2 states it; "
        "their geometric mean; that of all shapes, what is lost counted as 1.00; the share that is won.",
        _whole(whole),
    ]
    grouped = {
        name: {group: (len(part), table(part)) for group, part in groups.items()}
        for name, groups in ((name, grouping(rows)) for name, grouping in GROUPINGS.items())
        if name == "FLOP" or 1 < len(groups) < len(rows)
    }
    for protocol in _protocols(whole):
        names = [name for name in whole if protocol in whole[name]]
        parts.append(f"{protocol}: geometric mean and shapes won; last, the range of speedups over {names[-1]}.")
        parts += [_groups(protocol, name, names, groups) for name, groups in grouped.items()]
    return "\n\n".join(parts)


def _groups(protocol: str, what: str, names: Sequence[str], groups: Mapping[str, tuple[int, Table]]) -> str:
    """A line for each group that has a correct kernel; a group is how many shapes it has, and their table."""
    lines = [[what, "shapes", *names, "range"]]
    for group, (shapes, by_name) in groups.items():
        cells = [by_name.get(name, {}).get(protocol) for name in names]
        figures = [f"{cell.geomean:.3f}, {cell.wins:.0%}" if cell else "" for cell in cells]
        if any(cells):
            last = f"{cells[-1].lowest:.2f}–{cells[-1].highest:.2f}" if cells[-1] else ""
            lines.append([group, str(shapes), *figures, last])
    return markdown(lines)


def _whole(whole: Table) -> str:
    protocols = _protocols(whole)
    lines = [
        ["speedup over", *(f"{name}: {what}" for name in protocols for what in ("mean", "geomean", "lost as 1", "won"))]
    ]
    for name, by_protocol in whole.items():
        cells = [by_protocol.get(protocol) for protocol in protocols]
        figures = (
            (f"{cell.mean:.3f}", f"{cell.geomean:.3f}", f"{cell.fallback:.3f}", f"{cell.wins:.1%}")
            if cell
            else 4 * ("",)
            for cell in cells
        )
        lines.append([name, *(figure for four in figures for figure in four)])
    return markdown(lines)


def _protocols(whole: Table) -> list[str]:
    return [name for name in PROTOCOLS if any(name in by_protocol for by_protocol in whole.values())]


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Cells as a table in Markdown, the first line its head; its columns are aligned in plain text, too."""
    widths = [max(map(len, column)) for column in zip(*lines)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"

    return "\n".join(map(line, (lines[0], ["-" * width for width in widths], *lines[1:])))
