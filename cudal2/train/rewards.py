"""What a verdict is worth to the policy: pure functions, one per reward name, chosen by `RewardConfig`.

Each is bounded by LOWEST and HIGHEST, never falls when a kernel gets faster, and puts every failure below
every kernel that works. Speed is the lower bound of the speedup's 95% interval over the best baseline on the
device's clock, so a kernel gains nothing from being measured badly.
"""

import math
from collections.abc import Callable

from cudal2.config import RewardConfig
from cudal2.records import HarnessFault, Status, Verdict

LOWEST, HIGHEST = -1.0, 100.0

OCTAVES = 5.0
"""The log reward tells speedups apart from 2⁻⁵ to 2⁵; beyond, it is flat."""

FAILURES = {
    Status.NO_SOURCE: -1.0,
    Status.REJECTED: -0.9,
    Status.IMPLAUSIBLE: -0.9,  # faster than the device can be: an exploit must not look like progress
    Status.COMPILE_TIMEOUT: -0.8,
    Status.COMPILE_ERROR: -0.8,
    Status.PLAN_ERROR: -0.7,
    Status.LAUNCH_ERROR: -0.6,
    Status.OUT_OF_BOUNDS: -0.6,
    Status.TIMEOUT: -0.6,
    Status.WRONG: -0.5,
    Status.IMPRECISE: -0.4,
}
"""The log reward of every status but ok: the further a candidate got, the less it costs."""


def reward(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """The reward of one judged candidate, in LOWEST..HIGHEST; `source` is the text that was judged.

    Raises HarnessFault where a correct kernel was not timed: what has no speed is no failure either.
    """
    if verdict.ok and verdict.timing is None:
        raise HarnessFault("a correct kernel was not timed, so it has no reward", "Set worker.protocols=[device]")
    return _REWARDS[config.name](verdict, source, config)


def log(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """0 for a working kernel ≤ 1/32 as fast as the best baseline, 1 at parity, 2 at ≥ 32 times its speed.

    A factor of two is worth the same everywhere. What confidence the lower bound has (70% with `worker=quick`) shifts
    all kernels alike. Failures get their grade in FAILURES.
    """
    if verdict.timing is None:
        return FAILURES[verdict.status]
    octaves = math.log2(max(verdict.timing.low, 1e-9))
    return 1.0 + max(-OCTAVES, min(OCTAVES, octaves)) / OCTAVES


def paper(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """Speedup − alpha·(largest absolute error) − beta·(length in thousand characters), failures −1.

    After CUDA-L2 (arXiv:2512.02551), which rewards the speed ratio with penalties for deviation and length. What
    falls below 0 is scaled to stay above −½: no penalty makes a working kernel look like a failure, and of two
    kernels with the same penalty the faster one always earns more (up to HIGHEST).
    """
    if verdict.timing is None:
        return LOWEST
    penalty = config.alpha * (verdict.max_error or 0.0) + config.beta * len(source) / 1000
    earned = verdict.timing.low - penalty
    return min(HIGHEST, earned if earned >= 0 else earned / max(1.0, 2 * penalty))


def milestone(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """−1 failed, 1 correct, 2 faster than one baseline by `margin`, 3 faster than all of them.

    The discrete reward that CUDA Agent (arXiv:2602.24286) found to train better than the raw ratio; its two
    baselines are eager and compiled PyTorch, here they are the target's, all on the device's clock.
    """
    if verdict.timing is None:
        return LOWEST
    on_device = [timing for timing in verdict.timings if timing.protocol == verdict.timing.protocol]
    beaten = [timing.low >= 1.0 + config.margin for timing in on_device]
    return 1.0 + any(beaten) + all(beaten)


_REWARDS: dict[str, Callable[[Verdict, str, RewardConfig], float]] = {
    "log": log,
    "paper": paper,
    "milestone": milestone,
}
