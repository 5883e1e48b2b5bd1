"""The clipped logarithm of the speedup; failures earn less, graded by how far they got."""

import math

from cudal2.config import RewardConfig
from cudal2.records import Status, Verdict

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
    """0 for a working kernel 2^octaves times as slow as the best baseline, 1 at parity, 2 at 2^octaves times its speed;
    flat beyond.

    A factor of two is worth the same everywhere. The fewer `octaves`, the more a little speed weighs against a failure,
    which is what a policy needs that hardly fails. What confidence the lower bound has (70% with `worker=quick`) shifts
    all kernels alike. Failures get their grade in FAILURES.
    """
    if verdict.timing is None:
        return FAILURES[verdict.status]
    octaves = math.log2(max(verdict.timing.low, 1e-9))
    return 1.0 + max(-config.octaves, min(config.octaves, octaves)) / config.octaves
