"""GSPO: GRPO in which a whole text is clipped, not each of its tokens."""

from typing import Any

from cudal2.train.algorithms.grpo import advantages

__all__ = ["TRL", "advantages"]

TRL: dict[str, Any] = {
    "importance_sampling_level": "sequence",
    "loss_type": "grpo",  # the mean over texts: each has one ratio, so it is to weigh the same however long it is
    "epsilon": 3e-4,
    "epsilon_high": 4e-4,
}
"""After GSPO (arXiv:2507.18071), with the bounds of its experiments. The ratio of a text is the geometric mean of those
of its tokens, which stays far nearer to 1 than theirs; hence the narrow bounds. With trainer.iterations=1, where the
policy is updated once with what it has just written, every ratio is 1, and only the weight of long texts differs from
GRPO's.
"""
