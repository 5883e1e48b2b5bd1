"""From paired measurements to a speedup with an interval. Pure functions.

Candidate and baseline are timed in pairs, in random order within a pair, so that whatever drifts (clocks, other
tenants, temperature) meets both. The figure is the median of the paired log-ratios; its 95% interval comes from
the bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, 1993).
"""

import math

import msgspec
import numpy as np

RESAMPLES = 2000


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
