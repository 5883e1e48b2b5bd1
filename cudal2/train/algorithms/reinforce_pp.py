"""REINFORCE++: advantages that are normalised over the whole batch."""

from typing import Any, Literal

from torch import Tensor

from cudal2.config import TrainConfig
from cudal2.train import algorithms
from cudal2.train.algorithms import scaled

TRL: dict[str, Any] = {"scale_rewards": "batch"}


class Options(algorithms.Options, frozen=True):
    """`baseline` is what a reward is compared with before all are normalised: the mean of the whole batch, or that of
    its own group, where some problems earn more than others whatever is written."""

    baseline: Literal["batch", "group"] = "batch"

    def check(self, config: TrainConfig) -> None:
        if config.trainer.scale_rewards not in ("auto", "batch"):
            raise ValueError(
                f"trainer.algorithm=reinforce_pp normalises over the batch: trainer.scale_rewards="
                f"{config.trainer.scale_rewards} is for other algorithms; leave it out"
            )


def advantages(rewards: Tensor, scale: str, options: Options) -> Tensor:
    """The rewards (groups, samples) as they differ from the mean of all of the batch, in their standard deviations.

    After REINFORCE++ (arXiv:2501.03262), and with baseline=group after its variant for groups. A group whose samples
    are all about as fast teaches little then; scaled by itself, as in GRPO, it would teach the noise of its timing.
    """
    if options.baseline == "group":
        rewards = rewards - rewards.nanmean(dim=1, keepdim=True)
    return scaled(rewards - rewards.nanmean(), rewards, scale)
