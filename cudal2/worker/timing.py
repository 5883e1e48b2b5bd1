"""From paired measurements to a speedup with an interval, and when to stop measuring.

Candidate and baseline are timed in pairs, in random order within a pair, so that whatever drifts (clocks, other
tenants, temperature) meets both, and is as likely to favour either. The figure is the median of the paired log-ratios.

Its interval is that of the sign test, paid for exactly where one looks repeatedly. Of n independent pairs, the number S
whose ratio lies below the true median is that of heads in n tosses of a fair coin, whatever the noise. The interval
from the k-th smallest to the k-th largest ratio misses the median where S < k or S > n − k (Conover, Practical
Nonparametric Statistics, 3.2). Whoever looks several times and stops at an interval of his liking misses where S leaves
its band at any look; the probability of that is counted here step by step, so it holds for any rule that stops at a
look, and for small n, where the bootstrap's does not.

No more than 1 − 2^(1−n) can be had of n pairs: 75% of 3, 96.9% of 6.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np

from cudal2.config import WorkerConfig
from cudal2.records import STRICT, HarnessFault, Timing

GROWTH = 1.5
"""From one look to the next there are so many times the pairs; every further look would cost width."""

Band = tuple[int, int]
"""(n, k): a look after n pairs at the interval from the k-th smallest to the k-th largest; k = 0 is no look."""


def look_counts(least: int, most: int) -> list[int]:
    """After how many pairs one looks: from `least` on in growing steps, and at `most`."""
    numbers = [least]
    while numbers[-1] < most:
        numbers.append(min(most, math.ceil(GROWTH * numbers[-1])))
    return numbers


def miss_probability(bands: Sequence[Band]) -> float:
    """The probability that the true median lies outside the interval of any of these looks, in order of their n."""
    inside, missed = [1.0], 0.0
    for (before, _), (n, k) in pairwise([(0, 0), *bands]):
        for _ in range(n - before):
            inside = [(a + b) / 2 for a, b in zip([0.0, *inside], [*inside, 0.0])]
        if k:
            missed += sum(inside[:k]) + sum(inside[n + 1 - k :])
            inside = [mass if k <= s <= n - k else 0.0 for s, mass in enumerate(inside)]
    return missed


@cache
def look_bands(least: int, most: int, confidence: float) -> tuple[Band, ...]:
    """The look after each of `look_counts` but the last: equally severe each, and so severe that all are within bounds.

    A first look at too few pairs for `confidence` is none (k = 0).
    """
    looks = look_counts(least, most)[:-1]
    levels = sorted({miss_probability([(n, k)]) for n in looks for k in range(1, n // 2 + 1)})

    def at(level: float) -> tuple[Band, ...]:
        return tuple((n, _widest(n, level)) for n in looks)

    allowed = bisect_right(levels, 1 - confidence, key=lambda level: miss_probability(at(level)))
    return at(levels[allowed - 1]) if allowed else tuple((n, 0) for n in looks)


def _widest(n: int, level: float) -> int:
    """The largest k whose interval of n pairs alone misses no oftener than `level`; 0 for none."""
    return bisect_right(range(1, n // 2 + 1), level, key=lambda k: miss_probability([(n, k)]))


@cache
def final_look(n: int, least: int, most: int, confidence: float) -> tuple[int, float]:
    """(k, confidence) of the interval after n pairs, where timing stops: at a look, at `most`, or because time is up.

    What the looks before it have left over is spent on it. Fewer pairs than `confidence` takes give the widest interval
    there is, and what that covers is returned, less than was asked. Never more: which look it came to is chance too.
    """
    before = tuple(band for band in look_bands(least, most, confidence) if band[0] < n)
    at_look = [band[1] for band in look_bands(least, most, confidence) if band[0] == n and band[1]]
    k = at_look[0] if at_look else 1
    while not at_look and k < n // 2 and miss_probability([*before, (n, k + 1)]) <= 1 - confidence:
        k += 1
    return k, min(confidence, 1 - miss_probability([*before, (n, k)]))


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


class ReadFloor(msgspec.Struct, frozen=True):
    """Seconds a call of a kernel that only reads a problem's inputs once and writes as much as the output holds, and of
    each baseline, in the same rounds. `launch` says which way of launching the kernel was the fastest."""

    launch: str
    rounds: list[float]
    baselines: dict[str, list[float]]

    @property
    def spread(self) -> tuple[float, float, float]:
        """The median round, and an interval that holds the true median in 95% of cases, or as nearly as so few rounds
        allow."""
        ordered, count = sorted(self.rounds), len(self.rounds)
        k, _ = final_look(count, count, count, STRICT)
        return float(np.median(ordered)), ordered[k - 1], ordered[-k]


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
    bands = dict(look_bands(config.min_pairs, config.max_pairs, config.confidence))
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
    k, confidence = final_look(len(candidate), config.min_pairs, config.max_pairs, config.confidence)
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
