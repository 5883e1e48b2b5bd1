"""From paired measurements to a speedup with an interval.

Candidate and baseline are timed in pairs, in random order within a pair, so that whatever drifts (clocks, other
tenants, temperature) meets both, and is as likely to favour either. The figure is the median of the paired log-ratios;
its interval is that of the sign test, corrected for the looks after which timing might have stopped (`looks.py`).
"""

import math
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from cudal2.config import WorkerConfig
from cudal2.records import HarnessFault, Timing
from cudal2.worker import looks


class Speedup(msgspec.Struct, frozen=True):
    """Median ratio baseline/candidate and an interval."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval, as a share of the median."""
        return (self.high - self.low) / (2 * self.median)


def speedup(candidate: list[float], baseline: list[float], k: int = 1) -> Speedup:
    """From paired seconds a call, `candidate[i]` measured next to `baseline[i]`: from the `k`-th smallest ratio to the
    `k`-th largest.

    Raises ValueError where the lists are empty or differ in length.
    """
    if not candidate or len(candidate) != len(baseline):
        raise ValueError(f"{len(candidate)} and {len(baseline)} measurements are no pairs")
    ratios = np.sort(np.log(np.array(baseline)) - np.log(np.array(candidate)))
    return Speedup(math.exp(np.median(ratios)), math.exp(ratios[k - 1]), math.exp(ratios[-k]))


def enough(candidate: list[float], baseline: list[float], config: WorkerConfig, started: float) -> bool:
    """Whether these pairs, timed since `started` on `time.perf_counter`, are enough.

    So they are where a look finds the interval within `precision`, at `max_pairs`, and when time is up. One looks at a
    few counts only, and `summary` states an interval that has paid for it.
    """
    n = len(candidate)
    if n < config.min_pairs:
        return False
    if n >= config.max_pairs or time.perf_counter() - started > config.timing_seconds:
        return True
    bands = dict(looks.bands(config.min_pairs, config.max_pairs, config.confidence))
    return bool(bands.get(n)) and speedup(candidate, baseline, bands[n]).half_width <= config.precision


def calls_for(seconds_a_call: float, batch_seconds: float, most: int) -> int:
    """How many calls make a batch of at least `batch_seconds`, at most `most`, at least one."""
    return max(1, min(most, math.ceil(batch_seconds / max(seconds_a_call, 1e-9))))


def summary(
    candidate: list[float], baseline: list[float], name: str, protocol: str, calls: int, config: WorkerConfig
) -> Timing:
    """Paired seconds a call, which were `enough`, as the record of a verdict.

    Raises HarnessFault where a clock stood still.
    """
    if min(*candidate, *baseline) <= 0:
        raise HarnessFault("a clock measured no time", "Try again; on a GPU look at it with nvidia-smi")
    k, confidence = looks.last(len(candidate), config.min_pairs, config.max_pairs, config.confidence)
    figure = speedup(candidate, baseline, k)
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
        confidence=confidence,
    )


def derived(paired: Timing, seconds: Mapping[str, float], rounds: Mapping[str, Sequence[float]]) -> list[Timing]:
    """The same candidate against the other baselines, fastest first: by the ratios of their `seconds` alone.

    `seconds` a call are by name; the paired baseline is among them. `rounds` has the seconds of each round in which a
    baseline was measured in turn with the paired one: the least and the greatest ratio of these rounds is the ratio's
    own interval, and the figure's interval is wider by it. Without two rounds nothing is known of the ratio's error,
    and no confidence is stated.
    """
    return [
        _scaled(paired, name, seconds[name] / seconds[paired.baseline], rounds.get(name, ()), rounds)
        for name in sorted(seconds, key=lambda name: (seconds[name], name))
        if name != paired.baseline
    ]


def _scaled(
    paired: Timing, name: str, ratio: float, own: Sequence[float], rounds: Mapping[str, Sequence[float]]
) -> Timing:
    """The same candidate against a baseline that is `ratio` times slower than the paired one."""
    ratios = [one / base for one, base in zip(own, rounds.get(paired.baseline, ()))]
    return msgspec.structs.replace(
        paired,
        baseline=name,
        baseline_us=paired.baseline_us * ratio,
        speedup=paired.speedup * ratio,
        low=paired.low * min([ratio, *ratios]),
        high=paired.high * max([ratio, *ratios]),
        paired=False,
        confidence=paired.confidence if len(ratios) > 1 else 0.0,
    )
