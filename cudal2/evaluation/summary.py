"""Statistics of an evaluation's rows: which kernels are surely faster, means, shares won, machines."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from cudal2.evaluation.records import NOTHING_ARCHIVED, Results, Row
from cudal2.records import STRICT, Status, Timing

WIDEST = 0.2
"""An interval wider than this share of its median is too uncertain to prefer a kernel."""


class Summary(msgspec.Struct, frozen=True):
    """Statistics of the speedups of correct rows over the fastest baseline.

    `wins` is the share of rows whose median lies above 1, `sure_wins` of those that are `surely_faster`. `dispatched`
    is the geometric mean if all other rows count as 1.00, also those without a correct kernel, because in an exported
    library torch serves them.
    """

    shapes: int
    geomean: float
    dispatched: float
    wins: float
    sure_wins: float


def surely_faster(timing: Timing) -> bool:
    """Whether the interval lies above 1, is narrow and of STRICT confidence. A wide interval means that the machine was
    busy with something else, so its lower bound is not to be trusted either."""
    narrow = timing.high - timing.low <= WIDEST * timing.speedup
    return timing.low > 1 and narrow and timing.confidence >= STRICT


def called(timings: Iterable[Timing]) -> str:
    """The name of their intervals: "95% intervals", by the lowest confidence; "intervals" where one states none.

    Of figures that were converted by an estimate nothing is stated, and they do not count.
    """
    least = min((timing.confidence for timing in timings if timing.paired or timing.confidence), default=0.0)
    return f"{least:.0%} intervals" if least else "intervals"


def summarise(rows: Sequence[Row]) -> Summary | None:
    """The statistics of the correct ones of `rows`; None where there is none."""
    timings = [row.timing for row in rows if row.timing]
    if not timings:
        return None
    count = len(timings)
    served = count + sum(row.status != Status.OK for row in rows)  # what is ok was timed, if against other baselines
    return Summary(
        shapes=count,
        geomean=math.exp(sum(math.log(t.speedup) for t in timings) / count),
        dispatched=math.exp(sum(math.log(t.speedup) for t in timings if surely_faster(t)) / served),
        wins=sum(t.speedup > 1 for t in timings) / count,
        sure_wins=sum(map(surely_faster, timings)) / count,
    )


def machines(found: Results) -> Counter[str]:
    """The number of rows by the machine that they were measured on, such as `NVIDIA H200, machine 0f3a5b7c`."""

    def name(row: Row) -> str:
        environment = found.environments.get(row.fingerprint)
        device = environment.device if environment else row.fingerprint
        return f"{device}, machine {row.machine or 'unknown'}"

    return Counter(name(row) for row in found.rows if row.status != NOTHING_ARCHIVED)
