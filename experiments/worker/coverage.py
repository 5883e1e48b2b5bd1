"""How often an interval holds the true speedup, and how often it says "surely faster" of a kernel that is not.

    python experiments/worker/coverage.py [RUNS]

Pairs are drawn from laws of noise and handed to the worker's own stop rule one by one, as its pairing does. "Before" is
the rule that it replaced: a bootstrap interval, looked at after every pair. The last column of each is the pairs taken.
"""

import math
import sys
from collections.abc import Callable
from functools import cache

import numpy as np

from cudal2.config import BenchConfig, WorkerConfig, load
from cudal2.evaluation.records import WIDEST
from cudal2.evaluation.run import reporting_worker
from cudal2.worker import timing

SPEEDUP = 1.0
SCALES = (0.005, 0.01, 0.02, 0.04)
"""How noisy a side is: about the standard deviation of the logarithm of its seconds."""
RESAMPLES = 2000

Noise = Callable[[np.random.Generator, int, float], tuple[np.ndarray, np.ndarray]]
"""(n) log-seconds of either side over n pairs, at a scale."""


Rule = Callable[[list[float], list[float], WorkerConfig], tuple[bool, float, float]]
"""(candidate, baseline): whether these pairs are enough, and the interval then."""


def apart(draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]) -> Noise:
    """Noise that comes anew for each side of each pair."""

    def noise(rng: np.random.Generator, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        candidate, baseline = scale * draw(rng, (2, n))
        return candidate, baseline

    return noise


def contaminated(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    return rng.normal(size=size) * np.where(rng.random(size) < 0.1, 10, 1)


def drift(rng: np.random.Generator, n: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """A machine whose speed wanders and returns, over batches in random order within each pair, and bursts at times."""
    speed, found = 0.0, np.empty((2, n))
    for pair in range(n):
        for side in rng.permutation(2):
            speed = 0.95 * speed + scale * rng.normal() * (5 if rng.random() < 0.05 else 1)
            found[side, pair] = speed
    return found[0], found[1]


LAWS: dict[str, Noise] = {
    "normal": apart(lambda rng, size: rng.normal(size=size)),
    "lognormal": apart(lambda rng, size: np.exp(rng.normal(size=size)) / 2),
    "Student t, 2 df": apart(lambda rng, size: rng.standard_t(2, size)),
    "10% ten times wider": apart(contaminated),
    "drift": drift,
}


def now(candidate: list[float], baseline: list[float], config: WorkerConfig) -> tuple[bool, float, float]:
    """Whether these pairs are enough, and the interval."""
    if not timing.enough(candidate, baseline, config, math.inf):
        return False, 0.0, 0.0
    found = timing.summary(candidate, baseline, "", "", 1, config)
    return True, found.low, found.high


@cache
def middles(n: int) -> np.ndarray:
    """Which two of n sorted values the median of each resample lies between, [2, RESAMPLES]."""
    drawn = np.sort(np.random.default_rng(n).choice(n, (RESAMPLES, n)), axis=1)
    return drawn[:, [(n - 1) // 2, n // 2]].T


def before(candidate: list[float], baseline: list[float], config: WorkerConfig) -> tuple[bool, float, float]:
    """The same by the rule that was replaced."""
    n = len(candidate)
    if n < config.min_pairs:
        return False, 0.0, 0.0
    ratios = np.sort(np.log(np.array(baseline)) - np.log(np.array(candidate)))
    resamples = ratios[middles(n)].mean(axis=0)
    low, high = np.exp(np.quantile(resamples, (0.025, 0.975)))
    narrow = (high - low) / 2 <= config.precision * math.exp(np.median(ratios))
    return narrow or n >= config.max_pairs, low, high


def simulate(
    rule: Rule, config: WorkerConfig, noise: Noise, scale: float, runs: int, seed: int = 0
) -> tuple[float, ...]:
    """Shares of runs whose interval holds the truth and that were called surely faster, and pairs in the mean."""
    rng, held, faster, pairs = np.random.default_rng(seed), 0, 0, 0
    for _ in range(runs):
        logs = noise(rng, config.max_pairs, scale)
        candidate, baseline = (np.exp(log).tolist() for log in (logs[0] - math.log(SPEEDUP), logs[1]))
        for n in range(1, config.max_pairs + 1):
            done, low, high = rule(candidate[:n], baseline[:n], config)
            if done:
                break
        held += low <= SPEEDUP <= high
        faster += low > SPEEDUP and high - low <= WIDEST * SPEEDUP
        pairs += n
    return held / runs, faster / runs, pairs / runs


def configs() -> dict[str, tuple[WorkerConfig, WorkerConfig]]:
    """By name: the worker now, and as it was."""
    default, quick = (load("bench", over, BenchConfig).worker for over in ([], ["worker=quick"]))
    old, old_quick = WorkerConfig(min_pairs=5), quick
    return {
        "default": (default, old),
        "quick": (quick, old_quick),
        "eval": (reporting_worker(default), reporting_worker(old)),
        "eval worker=quick": (reporting_worker(quick), reporting_worker(old_quick)),
    }


def worst(rule: Rule, config: WorkerConfig, noise: Noise, runs: int) -> str:
    """Over SCALES the least share that holds and the largest that is surely faster; pairs in the mean."""
    held, faster, pairs = zip(*(simulate(rule, config, noise, scale, runs) for scale in SCALES))
    return f"{min(held):10.3f} {max(faster):7.3f} {sum(pairs) / len(pairs):6.1f}"


def main(runs: int) -> None:
    head = f"{'holds':>10} {'faster':>7} {'pairs':>6}"
    print(f"{'':<52}{'before':<27}now\n{'worker':<20}{'noise':<28}{head}  {head}")
    for name, (config, old) in configs().items():
        for law, noise in LAWS.items():
            figures = worst(before, old, noise, runs), worst(now, config, noise, runs)
            print(f"{name:<20}{law:<28}{figures[0]}  {figures[1]}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1000)
