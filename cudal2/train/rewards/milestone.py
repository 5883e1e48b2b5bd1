"""A discrete reward, after CUDA Agent."""

from cudal2.config import RewardConfig
from cudal2.records import Verdict
from cudal2.train.rewards import LOWEST


def reward(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """−1 failed, 1 correct, 2 faster than one baseline by `margin`, 3 faster than all of them by `margin`.

    The discrete reward that CUDA Agent (arXiv:2602.24286) found to train better than the raw ratio; its two
    baselines are eager and compiled PyTorch, here they are the target's, all on the device's clock.
    """
    if verdict.timing is None:
        return LOWEST
    on_device = [timing for timing in verdict.timings if timing.protocol == verdict.timing.protocol]
    beaten = [timing.low >= 1.0 + config.margin for timing in on_device]
    return 1.0 + any(beaten) + all(beaten)
