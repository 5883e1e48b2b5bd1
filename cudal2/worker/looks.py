"""When a timing may stop, and what its interval then covers: repeated looks, paid for exactly.

Of n independent pairs, the number S whose ratio lies below the true median is that of heads in n tosses of a fair coin,
whatever the noise. The interval from the k-th smallest to the k-th largest ratio misses the median where S < k or
S > n − k: the sign test's interval (Conover, Practical Nonparametric Statistics, 3.2). Whoever looks several times and
stops at an interval of his liking misses where S leaves its band at any look; the probability of that is counted here
step by step, so it holds for any rule that stops at a look, and for small n, where the bootstrap's does not.

No more than 1 − 2^(1−n) can be had of n pairs: 75% of 3, 96.9% of 6.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

GROWTH = 1.5
"""From one look to the next there are so many times the pairs; every further look would cost width."""

Band = tuple[int, int]
"""(n, k): a look after n pairs at the interval from the k-th smallest to the k-th largest; k = 0 is no look."""


def counts(least: int, most: int) -> list[int]:
    """After how many pairs one looks: from `least` on in growing steps, and at `most`."""
    found = [least]
    while found[-1] < most:
        found.append(min(most, math.ceil(GROWTH * found[-1])))
    return found


def missing(bands: Sequence[Band]) -> float:
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
def bands(least: int, most: int, confidence: float) -> tuple[Band, ...]:
    """The look after each of `counts` but the last: equally severe each, and so severe that all are within bounds.

    A first look at too few pairs for `confidence` is none (k = 0).
    """
    looks = counts(least, most)[:-1]
    levels = sorted({missing([(n, k)]) for n in looks for k in range(1, n // 2 + 1)})

    def at(level: float) -> tuple[Band, ...]:
        return tuple((n, _widest(n, level)) for n in looks)

    allowed = bisect_right(levels, 1 - confidence, key=lambda level: missing(at(level)))
    return at(levels[allowed - 1]) if allowed else tuple((n, 0) for n in looks)


def _widest(n: int, level: float) -> int:
    """The largest k whose interval of n pairs alone misses no oftener than `level`; 0 for none."""
    return bisect_right(range(1, n // 2 + 1), level, key=lambda k: missing([(n, k)]))


@cache
def last(n: int, least: int, most: int, confidence: float) -> tuple[int, float]:
    """(k, confidence) of the interval after n pairs, where timing stops: at a look, at `most`, or because time is up.

    What the looks before it have left over is spent on it. Fewer pairs than `confidence` takes give the widest interval
    there is, and what that covers is returned, less than was asked. Never more: which look it came to is chance too.
    """
    before = tuple(band for band in bands(least, most, confidence) if band[0] < n)
    found = [band[1] for band in bands(least, most, confidence) if band[0] == n and band[1]]
    k = found[0] if found else 1
    while not found and k < n // 2 and missing([*before, (n, k + 1)]) <= 1 - confidence:
        k += 1
    return k, min(confidence, 1 - missing([*before, (n, k)]))
