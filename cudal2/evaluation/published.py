"""Compares a published table of figures by shape with ours: `against=FILE.csv`.

It reads CUDA-L2's tables (`mnk, torch.matmul, cuBLAS-tn, … , cuBLASLt-auto-tuning-max`: speedups, under the protocol
that the file's name states), our own `results.csv` (environments, layouts and precisions apart), and tables of
baselines in microseconds per call (`graph_lta_nn`: auto-tuned cuBLASLt in a graph; `wall_` on the host's clock). The
shape is in a column `mnk` as M_N_K, or in `m`, `n` and `k`. If a shape has several lines, the last one counts. What
states no dtype is about fp16, and what states no epilogue, about the product alone.
"""

import csv
import re
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec

from cudal2.evaluation.records import Row
from cudal2.evaluation.tables import FASTEST, MAX, PROTOCOLS, against, library, markdown
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.records import Timing

_PUBLISHED = re.compile(r"cublas(lt)?(-heuristic|-auto-?tuning)?-(nn|tn|max)$")
_MICROSECONDS = re.compile(r"(graph|wall)_(cublas|lth|lta)_(nn|tn)$")
_LIBRARIES = {"cublas": "cublas", "lth": "cublaslt", "lta": "cublaslt-auto"}
_OURS = {"baseline", "protocol", "speedup"}


class Figure(msgspec.Struct, frozen=True):
    """The meaning of the column `name`: figures `of` a baseline (cublas-tn) or a library (a value of MAX), under a
    `protocol`: either `microseconds` per call of the baseline, or speedups over it.
    """

    name: str
    of: str
    protocol: str
    microseconds: bool = False


Shape = tuple[int, int, int, str, str, str, str]
"""The fields of a problem; layout and accumulate are "" in a file that does not state them."""


class Published(msgspec.Struct, frozen=True):
    """The figures of a file by column and shape, and its other columns' names."""

    file: str
    figures: dict[Figure, dict[Shape, float]]
    unknown: tuple[str, ...] = ()


class Compared(msgspec.Struct, frozen=True):
    """One column on the shapes that both tables have: (ours, theirs) by problem."""

    figure: Figure
    pairs: dict[Problem, tuple[float, float]]

    @property
    def means(self) -> tuple[float, float]:
        """Arithmetic means, as in CUDA-L2: (ours, theirs)."""
        ours, theirs = zip(*self.pairs.values())
        return statistics.fmean(ours), statistics.fmean(theirs)

    @property
    def geomeans(self) -> tuple[float, float]:
        ours, theirs = zip(*self.pairs.values())
        return statistics.geometric_mean(ours), statistics.geometric_mean(theirs)

    @property
    def wins(self) -> tuple[float, float]:
        """Shares of the shapes whose speedup lies above 1: (ours, theirs)."""
        ours, theirs = zip(*self.pairs.values())
        return sum(speedup > 1 for speedup in ours) / len(ours), sum(speedup > 1 for speedup in theirs) / len(theirs)


def read(path: Path) -> Published:
    """The table in a CSV file. Raises ValueError where it cannot be read or says nothing of any shape."""
    try:
        with path.expanduser().open(newline="") as file:
            reader = csv.DictReader(file)
            lines = [(reader.line_num, line) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    names = list(dict.fromkeys(reader.fieldnames or ())) if lines else []
    long = set(names) >= _OURS
    protocol = next((name for name in PROTOCOLS if name in path.name.lower()), "device")
    known = {} if long else {name: figure for name in names if (figure := _figure(name, protocol))}
    several = long and len({line.get("fingerprint") for _, line in lines}) > 1
    figures: dict[Figure, dict[Shape, float]] = {}
    for number, line in lines:
        try:
            if None in line:  # where the reader puts what is behind the last column
                raise ValueError("it has more cells than the first line, which names the columns")
            shape = _shape(line)
            if long and line["speedup"]:
                of, by = line["baseline"], line["protocol"]
                stated = Figure(f"{of} {by}" + several * f" {line['fingerprint']}", of, by)
                figures.setdefault(stated, {})[shape] = _positive(line["speedup"])
            for name, figure in known.items():
                if line[name]:
                    figures.setdefault(figure, {})[shape] = _positive(line[name])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}; a shape is mnk=M_N_K, or m, n and k") from error
    if not figures:
        raise ValueError(
            f"{path} has no column that is known here ({', '.join(names) or 'it is empty'}); name one as CUDA-L2 does, "
            "torch.matmul or cuBLASLt-auto-tuning-max, or speedup"
        )
    shape_names = {"mnk", *Problem.__struct_fields__}
    other = () if long else tuple(name for name in names if name not in known and name.lower() not in shape_names)
    return Published(str(path), figures, other)


def compare(rows: Sequence[Row], published: Published) -> list[Compared]:
    """Each column that has a counterpart here on some shape. If the file does not state layouts or precisions, the
    first of our rows of a shape counts."""
    compared = []
    for figure, theirs in published.figures.items():
        ours: dict[Shape, Row] = {}
        for row in rows:
            p = row.problem
            both = product((p.layout, ""), (p.accumulate, ""))
            stated = ((p.m, p.n, p.k, layout, accumulate, p.dtype, p.epilogue) for layout, accumulate in both)
            if shape := next((shape for shape in stated if shape in theirs), None):
                ours.setdefault(shape, row)
        pairs = {}
        for shape, row in ours.items():
            if timing := _counterpart(row, figure):
                mine = timing.baseline_us if figure.microseconds else timing.speedup
                pairs[row.problem] = (mine, theirs[shape])
        if pairs:
            compared.append(Compared(figure, pairs))
    return compared


def text(rows: Sequence[Row], published: Published) -> str:
    """Shape by shape, ours and theirs side by side, then the aggregates over the shapes that both have, in Markdown."""
    compared = compare(rows, published)
    if not compared:
        return f"{published.file}: nothing in it was measured here, under its protocols and on its shapes"
    problems = list(dict.fromkeys(problem for column in compared for problem in column.pairs))
    alike = len({problem.mnk for problem in problems}) == len(problems)
    lines = [["ours / theirs", *(column.figure.name for column in compared)]]
    for problem in problems:
        pairs = [column.pairs.get(problem) for column in compared]
        lines.append(
            [
                problem.mnk if alike else problem.name,
                *(f"{pair[0]:.3f} / {pair[1]:.3f}" if pair else "" for pair in pairs),
            ]
        )
    whole = [["ours / theirs", "protocol", "shapes", "mean", "geometric mean", "won"]]
    for column in compared:
        what = "µs" if column.figure.microseconds else "speedup"
        means = [f"{a:.3f} / {b:.3f}" for a, b in (column.means, column.geomeans)]
        won = "" if column.figure.microseconds else "{:.1%} / {:.1%}".format(*column.wins)
        whole.append([f"{column.figure.name}, {what}", column.figure.protocol, str(len(column.pairs)), *means, won])
    parts = [f"Against {published.file}:", markdown(lines), markdown(whole)]
    if published.unknown:
        parts.append(f"Columns without a counterpart here: {', '.join(published.unknown)}")
    return "\n\n".join(parts)


def _figure(name: str, protocol: str) -> Figure | None:
    low = name.strip().lower()
    if low == "torch.matmul":  # which CUDA-L2 calls with B as K×N
        return Figure(name, "torch-nn", protocol)
    if low == "speedup":
        return Figure(name, FASTEST, protocol)
    if match := _MICROSECONDS.match(low):
        clock, short, layout = match.groups()
        return Figure(name, f"{_LIBRARIES[short]}-{layout}", "device" if clock == "graph" else "offline", True)
    if match := _PUBLISHED.match(low):
        lt, kind, layout = match.groups()
        if bool(lt) == bool(kind):
            base = {None: "cublas", "-heuristic": "cublaslt"}.get(kind, "cublaslt-auto")
            return Figure(name, MAX[base] if layout == "max" else f"{base}-{layout}", protocol)
    return None


def _counterpart(row: Row, figure: Figure) -> Timing | None:
    """Our timing over the same baseline; for torch.matmul without layouts, over its faster layout."""
    exact = (t for t in row.timings if t.protocol == figure.protocol and t.baseline == figure.of)
    if counterpart := next(exact, None):
        return counterpart
    name = figure.of
    if name == "torch-nn" and not any(timing.baseline.endswith(("-nn", "-tn")) for timing in row.timings):
        name = library(name)
    return against(row, name, figure.protocol)


def _shape(line: dict[str, str]) -> Shape:
    low = {str(name).strip().lower(): value for name, value in line.items()}
    m, n, k = low["mnk"].split("_") if low.get("mnk") else (low["m"], low["n"], low["k"])
    layout, accumulate = low.get("layout", ""), low.get("accumulate", "")
    layout, accumulate = layout * (layout in get_args(Layout)), accumulate * (accumulate in get_args(Accumulate))
    return int(m), int(n), int(k), layout, accumulate, low.get("dtype") or "fp16", low.get("epilogue") or "none"


def _positive(value: str) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{value!r} is no figure")
    return number
