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
"""The reward of every status but ok: the further a candidate got, the higher."""


def reward(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """For correct kernels 1 + log2(speedup) / octaves, clipped to 0..2; for failures their grade in FAILURES.

    So a factor of two is worth the same at any speed. With fewer `octaves`, speed weighs more against a failure, which
    suits a policy that hardly fails. The confidence of the lower bound (70% with `worker=quick`) shifts all kernels
    alike.
    """
    if verdict.timing is None:
        return FAILURES[verdict.status]
    octaves = math.log2(max(verdict.timing.low, 1e-9))
    return 1.0 + max(-config.octaves, min(config.octaves, octaves)) / config.octaves
