"""GRPO: better or worse than the mean of the group."""

from typing import Any

from torch import Tensor

from cudal2.train.algorithms import Options, scaled

TRL: dict[str, Any] = {}


def advantages(rewards: Tensor, scale: str, options: Options) -> Tensor:
    """How far each reward is above the mean of its group, in standard deviations of the `scale`.

    After DeepSeekMath (arXiv:2402.03300); the loss is DAPO's (arXiv:2503.14476), in which each token weighs the same.
    """
    return scaled(rewards - rewards.nanmean(dim=1, keepdim=True), rewards, scale)
