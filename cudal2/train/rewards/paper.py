"""The speed ratio with penalties, after CUDA-L2."""

from cudal2.config import RewardConfig
from cudal2.records import Verdict
from cudal2.train.rewards import HIGHEST, LOWEST


def reward(verdict: Verdict, source: str, config: RewardConfig) -> float:
    """Speedup − alpha·(largest absolute error) − beta·(length in thousand characters), failures −1.

    After CUDA-L2 (arXiv:2512.02551), which rewards the speed ratio with penalties for error and length. Values
    below 0 are scaled to stay above −½, so that no penalty makes a correct kernel look like a failure. Of two
    kernels with the same penalty the faster one always earns more (up to HIGHEST).
    """
    if verdict.timing is None:
        return LOWEST
    penalty = config.alpha * (verdict.max_error or 0.0) + config.beta * len(source) / 1000
    earned = verdict.timing.low - penalty
    return min(HIGHEST, earned if earned >= 0 else earned / max(1.0, 2 * penalty))
