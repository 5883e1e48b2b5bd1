"""The best of k: what each sample of a group is worth where only the best of several samples will be used.

GRPO raises the mean reward of samples. A search uses the best of many, so that ideas which seldom work are worth
keeping, and the mean does not keep them. Here a sample is worth what it adds to the best of k: the mean, over all
choices of k - 1 others of its group, of how far it surpasses the best of those. This is the estimator "loo-1" of PKPO
(C. Walder and D. Karkhanis, arXiv:2505.15201), an unbiased gradient of the expected best reward of k samples.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from cudal2.config import TrainConfig
from cudal2.train import algorithms
from cudal2.train.algorithms import scaled

TRL: dict[str, Any] = {}


class Options(algorithms.Options, frozen=True):
    """`k` is of how many samples the best counts."""

    k: Annotated[int, msgspec.Meta(ge=2)] = 4

    def check(self, config: TrainConfig) -> None:
        if self.k > config.trainer.group_size or config.turns.count > 1:
            raise ValueError(
                f"trainer.algorithm=best_of needs trainer.group_size of at least trainer.options.k={self.k}, and "
                "turns.count=1: of several turns turns.reward=best counts the best"
            )


def advantages(rewards: Tensor, scale: str, options: Options) -> Tensor:
    """k times what each sample adds to the best of k.

    It is divided by the standard deviation of the `scale`. (So only with none is the gradient unbiased, as in GRPO.) A
    group's mean is not subtracted: of two samples of which the best counts, it would make ordinary GRPO.
    """
    added = torch.tensor([added_to_the_best(group, options.k) for group in rewards.tolist()], dtype=rewards.dtype)
    known = (~rewards.isnan()).sum(dim=1, keepdim=True)
    return scaled(added.to(rewards.device) * known.clamp(max=options.k), rewards, scale)


def added_to_the_best(rewards: Sequence[float], k: int) -> list[float]:
    """What each reward of a group adds to the best of k, itself among them, in the mean; 0 for those that are NaN.

    Where fewer than k are known, it is the best of as many as are.
    """
    known = [place for place, one in enumerate(rewards) if not math.isnan(one)]
    order = sorted(known, key=lambda place: rewards[place])
    count, added = len(order), [0.0] * len(rewards)
    k = min(k, count)
    if k < 2:
        return added
    for rank, place in enumerate(order):
        # Those k - 1 others whose best is of rank `below`: the rest of them is chosen among the `below` lesser ones.
        gains = (math.comb(below, k - 2) * (rewards[place] - rewards[order[below]]) for below in range(rank))
        added[place] = sum(gains) / math.comb(count - 1, k - 1)
    return added
