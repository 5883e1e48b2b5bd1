"""Leave-one-out: REINFORCE, each reward compared with those of the others of its group."""

from typing import Any

from torch import Tensor

from cudal2.config import TrainConfig
from cudal2.train import algorithms
from cudal2.train.algorithms import scaled

TRL: dict[str, Any] = {"scale_rewards": "none"}


class Options(algorithms.Options, frozen=True):
    """No keys."""

    def check(self, config: TrainConfig) -> None:
        if config.turns.count > 1:
            raise ValueError(
                "trainer.algorithm=leave_one_out compares samples that do not depend on one another, and a later turn "
                "depends on the turns before it: use turns.count=1, or trainer.algorithm=grpo"
            )


def advantages(rewards: Tensor, scale: str, options: Options) -> Tensor:
    """Each reward minus the mean of the others of its group; no number where there are no others.

    After RLOO (arXiv:2402.14740). What a sample is compared with does not depend on it, so that with scale none the
    gradient is that of the mean reward without bias, but for the factor by which the loss counts tokens. A group of
    one sample teaches nothing.
    """
    others = (~rewards.isnan()).sum(dim=1, keepdim=True) - 1
    return scaled(rewards - (rewards.nansum(dim=1, keepdim=True) - rewards) / others, rewards, scale)
