"""The table that a page opens with: every baseline under every protocol, overall and by decade of work.

All of its numbers are made here, of what `cudal2.evaluation.results` says of a set of rows; intervals are those of
`budget`: of 95%, by drawing shapes anew.
"""

import math
from collections.abc import Sequence

import msgspec

from cudal2.evaluation import tables
from cudal2.evaluation.records import Row
from cudal2.evaluation.summary import Summary, by_decade, summarise, surely_faster
from cudal2.records import Timing
from cudal2.report import budget
from cudal2.report.budget import Estimate
from cudal2.report.steps import mean

FASTEST = "fastest baseline"
PROTOCOLS = {
    "device": "the kernel alone, on the device's clock",
    "offline": "one call after the other from the host, launching included",
    "server": "calls from the host after pauses, launching included",
}
"""What each protocol times, for people."""


class Line(msgspec.Struct, frozen=True):
    """The correct rows against one baseline under one protocol, that alone left of their timings.

    `mean` is the arithmetic mean of the speedups, `served` the summary's `dispatched` with its interval.
    """

    protocol: str
    baseline: str
    rows: tuple[Row, ...]
    summary: Summary
    mean: float
    served: Estimate
    decades: dict[int, Summary]


def lines(rows: Sequence[Row]) -> list[Line]:
    """A line for each protocol and baseline, the fastest of all baselines first.

    What is timed in two layouts counts as one baseline, in the layout that is faster for the shape.
    """
    found: dict[str, set[str]] = {}
    for row in rows:
        for timing in row.timings:
            found.setdefault(timing.protocol, set()).add(tables.library(timing.baseline))
    order = dict.fromkeys((*tables.MAX.values(), *sorted(set().union(*found.values()))))
    pairs = [
        (protocol, name) for protocol in found for name in (FASTEST, *order) if name in {FASTEST, *found[protocol]}
    ]
    return [_line(*pair, [against(row, *pair) for row in rows]) for pair in pairs]


def against(row: Row, protocol: str, baseline: str) -> Row:
    """The row with the one timing that is asked for, or with none."""
    timing = tables.against(row, tables.FASTEST if baseline == FASTEST else baseline, protocol)
    return msgspec.structs.replace(row, timings=(timing,) if timing else ())


def _line(protocol: str, baseline: str, rows: Sequence[Row]) -> Line:
    summary = summarise(rows)
    assert summary  # a pair that some row was timed against
    timings = [row.timing for row in rows if row.timing]
    served = budget.estimate([_worth(timing) for timing in timings])
    geometric = Estimate(*map(math.exp, served))
    average = mean([timing.speedup for timing in timings])
    return Line(protocol, baseline, tuple(rows), summary, average, geometric, by_decade(rows))


def _worth(timing: Timing) -> float:
    """Logarithm of what dispatch makes of it."""
    return math.log(timing.speedup) if surely_faster(timing) else 0.0
