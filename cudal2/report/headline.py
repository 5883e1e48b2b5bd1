"""The first table of a page: every baseline under every protocol, overall and by decade of work.

All its numbers are computed here from the rows of an evaluation; intervals are the bootstrap's of `budget`.
"""

import math
from collections.abc import Sequence

import msgspec

from cudal2.evaluation import tables
from cudal2.evaluation.records import Row, Summary, summarise, surely_faster
from cudal2.records import Status, Timing
from cudal2.report import budget
from cudal2.report.budget import Estimate
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
