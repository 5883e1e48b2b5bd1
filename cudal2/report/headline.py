"""The first table of a page: every baseline under every protocol, overall and by decade of work; and all data of a
page, packed for its script: JSON, raw DEFLATE (RFC 1951), base64.

All its numbers are computed here from the rows of an evaluation; intervals are the bootstrap's of `budget`.
"""

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from cudal2 import operators
from cudal2.arch import Roof
from cudal2.evaluation import tables
from cudal2.evaluation.records import Row, Summary, summarise, surely_faster
from cudal2.problem import Problem
from cudal2.records import Status, Timing
from cudal2.report import budget
from cudal2.report.budget import Estimate
from cudal2.report.kernels import Kernel
from cudal2.report.steps import mean

FASTEST = "fastest baseline"
PROTOCOLS = {
    "device": "the kernel alone, on the device's clock",
    "offline": "one call after the other from the host, launching included",
    "server": "calls from the host after pauses, launching included",
}
"""What each protocol times, in words."""


class Line(msgspec.Struct, frozen=True):
    """The correct rows with only their timing against one baseline under one protocol.

    `mean` is the arithmetic mean of the speedups, `served` the summary's `dispatched` with its interval,
    `decades` a summary of each decade of work that has correct rows.
    """

    protocol: str
    baseline: str
    rows: tuple[Row, ...]
    summary: Summary
    mean: float
    served: Estimate
    decades: dict[str, Summary]


def lines(rows: Sequence[Row]) -> list[Line]:
    """A line for each protocol and baseline, the fastest of all baselines first.

    A baseline that was timed in two layouts counts once, in the layout that is faster for the shape.
    """
    timed: dict[str, set[str]] = {}
    for row in rows:
        for timing in row.timings:
            timed.setdefault(timing.protocol, set()).add(tables.library(timing.baseline))
    order = dict.fromkeys((*tables.MAX.values(), *sorted(set().union(*timed.values()))))
    pairs = [
        (protocol, name) for protocol in timed for name in (FASTEST, *order) if name in {FASTEST, *timed[protocol]}
    ]
    return [_line(*pair, [against(row, *pair) for row in rows]) for pair in pairs]


def against(row: Row, protocol: str, baseline: str) -> Row:
    """The row with only the timing under that protocol against that baseline, or with none."""
    timing = tables.against(row, tables.FASTEST if baseline == FASTEST else baseline, protocol)
    return msgspec.structs.replace(row, timings=(timing,) if timing else ())


def _line(protocol: str, baseline: str, rows: Sequence[Row]) -> Line:
    summary = summarise(rows)
    assert summary  # a pair that some row was timed against
    timings = [row.timing for row in rows if row.timing]
    lost = sum(row.status != Status.OK for row in rows)
    served = budget.estimate([_worth(timing) for timing in timings] + [0.0] * lost)
    geometric = Estimate(*map(math.exp, served))
    average = mean([timing.speedup for timing in timings])
    decades = {name: part_summary for name, part in tables.by_decade(rows).items() if (part_summary := summarise(part))}
    return Line(protocol, baseline, tuple(rows), summary, average, geometric, decades)


def _worth(timing: Timing) -> float:
    """The logarithm of the speedup that a user gets: 0 where the kernel is not dispatched."""
    return math.log(timing.speedup) if surely_faster(timing) else 0.0


LIMIT = 8_000_000
"""The most bytes that the data may take; the rest of a page takes some hundred thousand."""

COLUMNS = ("speedup", "low", "high", "candidate_us")
"""The fields of a timing that a page draws."""


def data(lines: Sequence[Line], kernels: Sequence[Kernel], roof: Roof | None, limit: int = LIMIT, **more: Any) -> str:
    """The data of a page as text. Kernels are left out, the last first, until it has at most `limit` bytes.

    Each source is in it once, and kernels refer to it by index. The columns of a line hold one value for each shape,
    None where the shape has no such timing.
    """
    fixed = {"lines": list(map(_columns, lines)), "shapes": _shapes(lines), "roof": roof, **more}
    while True:
        sources = {kernel.source: None for kernel in sorted(kernels, key=lambda kernel: (kernel.family, kernel.source))}
        places = {source: place for place, source in enumerate(sources)}
        listed = [_kernel(kernel, places[kernel.source]) for kernel in kernels]
        text = packed({**fixed, "kernels": listed, "sources": list(sources)})
        if len(text) <= limit or not kernels:
            return text
        kernels = kernels[: min(len(kernels) - 1, len(kernels) * limit // len(text))]


def packed(value: Any) -> str:
    """`value` as JSON, deflated, in base64."""
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(press.compress(msgspec.json.encode(value)) + press.flush()).decode()


def unpacked(text: str) -> Any:
    """The value that `packed` was given, in JSON's types."""
    return msgspec.json.decode(zlib.decompress(base64.b64decode(text), -15))


def _columns(line: Line) -> dict[str, Any]:
    timings = [row.timing for row in line.rows]
    values = {name: [_short(getattr(t, name)) if t else None for t in timings] for name in COLUMNS}
    return {"protocol": line.protocol, "baseline": line.baseline, **values}


def _shapes(lines: Sequence[Line]) -> list[tuple[Any, ...]]:
    rows = lines[0].rows if lines else ()
    return [
        (_problem(row.problem), row.status, row.kernel[:12], operators.flop(row.problem), operators.nbytes(row.problem))
        for row in rows
    ]


def _problem(problem: Problem) -> tuple[int | str, ...]:
    """M, N, K and the words of its kind."""
    return (problem.m, problem.n, problem.k, *problem.kind)


def _kernel(kernel: Kernel, source: int) -> dict[str, Any]:
    fields = msgspec.structs.asdict(kernel)
    timing = fields.pop("timing")
    numbers = {name: _short(getattr(timing, name)) for name in COLUMNS} if timing else {}
    problem = _problem(fields.pop("problem"))
    short = {name: value for name, value in fields.items() if value != ""}
    return {**short, **numbers, "problem": problem, "hash": kernel.hash[:12], "source": source}


def _short(value: float) -> float:
    return float(f"{value:.5g}")
