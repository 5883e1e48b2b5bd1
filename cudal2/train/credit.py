"""What each sample of a group is worth where only the best of several samples will be used.

GRPO raises the mean reward of samples. A search uses the best of many, so that ideas which seldom work are worth
keeping, and the mean does not keep them. Here a sample is worth what it adds to the best of k: the mean, over all
choices of k - 1 others of its group, of how far it surpasses the best of those. This is the estimator "loo-1" of PKPO
(C. Walder and D. Karkhanis, arXiv:2505.15201), an unbiased gradient of the expected best reward of k samples.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from trl.trainer.utils import nanstd


def advantages(rewards: Tensor, k: int, scale: str) -> Tensor:
    """Of `rewards` (groups, samples), where NaN is none: k times what each sample adds to the best of k; 0 for none.

    They are divided by the standard deviation of the rewards of the `scale`: batch, group or none. (So only with none
    is the gradient unbiased, as in GRPO.) A group's mean is not subtracted: of two samples of which the best counts, it
    would make ordinary GRPO.
    """
    added = torch.tensor([added_to_the_best(group, k) for group in rewards.tolist()], dtype=rewards.dtype)
    found = added.to(rewards.device) * (~rewards.isnan()).sum(-1, keepdim=True).clamp(max=k)
    if scale == "none":
        return found
    deviation = nanstd(rewards, dim=1, keepdim=True) if scale == "group" else nanstd(rewards)
    return (found / (deviation + 1e-4)).nan_to_num(0.0)  # as in TRL


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
