"""From paired measurements to a speedup with an interval.

Candidate and baseline are timed in pairs, in random order within a pair, so that whatever drifts (clocks, other
tenants, temperature) meets both. The figure is the median of the paired log-ratios; its 95% interval comes from
the bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, 1993).
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np

from cudal2.records import HarnessFault, Timing

RESAMPLES = 2000
TRIES = 3
BUSY = "Stop other programs; on a processor, set worker.threads to the number of cores that are free"
"""The remedy where something else is at work."""


class Speedup(msgspec.Struct, frozen=True):
    """Median ratio baseline/candidate and its 95% interval."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval, as a share of the median."""
        return (self.high - self.low) / (2 * self.median)


def speedup(candidate: list[float], baseline: list[float]) -> Speedup:
    """From paired seconds a call, `candidate[i]` measured next to `baseline[i]`.

    Raises ValueError where the lists are empty or differ in length.
    """
    if not candidate or len(candidate) != len(baseline):
        raise ValueError(f"{len(candidate)} and {len(baseline)} measurements are no pairs")
    ratios = np.log(np.array(baseline)) - np.log(np.array(candidate))
    # A fixed seed: the same measurements give the same interval.
    rng = np.random.default_rng(len(ratios))
    resamples = np.median(rng.choice(ratios, (RESAMPLES, len(ratios))), axis=1)
    low, high = np.quantile(resamples, (0.025, 0.975))
    return Speedup(math.exp(np.median(ratios)), math.exp(low), math.exp(high))


def calls_for(seconds_a_call: float, batch_seconds: float, most: int) -> int:
    """How many calls make a batch of at least `batch_seconds`, at most `most`, at least one."""
    return max(1, min(most, math.ceil(batch_seconds / max(seconds_a_call, 1e-9))))


def summary(candidate: list[float], baseline: list[float], name: str, protocol: str, calls: int) -> Timing:
    """Paired seconds a call as the record of a verdict. Raises HarnessFault where a clock stood still."""
    if min(*candidate, *baseline) <= 0:
        raise HarnessFault("a clock measured no time", "Try again; on a GPU look at it with nvidia-smi")
    figure = speedup(candidate, baseline)
    return Timing(
        baseline=name,
        protocol=protocol,
        candidate_us=float(np.median(candidate)) * 1e6,
        baseline_us=float(np.median(baseline)) * 1e6,
        speedup=figure.median,
        low=figure.low,
        high=figure.high,
        pairs=len(candidate),
        calls=calls,
    )


def undisturbed(measure: Callable[[], Timing], alone: float, most: float) -> Timing:
    """What `measure` finds, again where something else was at work beside it.

    So it was where the baseline took `most` times its seconds `alone`, or where the interval spans that factor.
    Raises HarnessFault after a few tries.
    """
    for _ in range(TRIES):
        found = measure()
        slowdown, span = found.baseline_us / alone / 1e6, found.high / found.low
        if slowdown <= most and span <= most:
            return found
    said = f"{found.baseline} takes {slowdown:.1f} times as long as alone, the interval spans a factor of {span:.1f}"
    raise HarnessFault(f"the machine is too busy to time: {said}", BUSY)
