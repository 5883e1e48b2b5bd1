"""The groups of keys that say how a policy is trained: rewards, RL, and supervised training."""

from typing import Annotated, Any, Literal

import msgspec

from cudal2.config.base import NEUTRAL, Schema


class RewardConfig(Schema, frozen=True):
    """How a verdict becomes a reward. `name` is a module in `train/rewards/`, which says how it uses the other keys:
    log reads `octaves`, milestone `margin`, and paper `alpha` and `beta`."""

    name: str = "log"
    octaves: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    alpha: float = 0.1
    beta: float = 0.0
    margin: float = 0.05


class TrainerConfig(Schema, frozen=True):
    """RL. In each step, for each of `problems_per_step` problems a group of `group_size` completions is sampled, each
    with `turns.count` turns; then the policy is updated `iterations` times.

    A run ends after `steps` steps. With `minutes` above 0 it ends earlier, after the step in which all its starts
    together have taken that long. `resume` auto continues a run that is found in the folder; never refuses to. A
    checkpoint is written every `save_steps` steps.

    `learning_rate` is Adam's, whose first step is as long in every weight, however small the gradient. For a model of
    0.1 billion parameters 1e-3 with adapters undid in one step what it had been taught; 1e-4 with all weights is as far
    (experiments/smollm2).

    `algorithm` is a module in `train/algorithms/`, which says what rewards teach and documents its own keys,
    `options` (such as trainer.algorithm=best_of trainer.options.k=4). `beta`, `epsilon`, `scale_rewards` and
    `max_grad_norm` are TRL's options of these names, `loss` is its `loss_type`; where one is auto, the algorithm
    chooses. If rewards are scaled by group, and all samples of a group are about as fast, then the noise of their
    measurement weighs as much as the difference between right and wrong does in another group. `entropy` is the weight
    of an entropy bonus.

    In an update, `micro_batch` samples at a time go through the model, 0: all samples of the process. `deepspeed`
    names the configuration that shards training over several processes: a file, or one that ships (zero2 shards the
    gradients and the optimiser's state, zero3 the weights too).
    """

    steps: Annotated[int, msgspec.Meta(ge=0), NEUTRAL] = 40
    minutes: Annotated[float, msgspec.Meta(ge=0), NEUTRAL] = 0.0
    problems_per_step: Annotated[int, msgspec.Meta(ge=1)] = 2
    group_size: Annotated[int, msgspec.Meta(ge=1)] = 16
    learning_rate: float = 2e-4
    algorithm: str = "grpo"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    beta: float | Literal["auto"] = "auto"
    epsilon: float | Literal["auto"] = "auto"
    iterations: Annotated[int, msgspec.Meta(ge=1)] = 1
    save_steps: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 10
    max_grad_norm: float = 1.0
    loss: Literal["auto", "dapo", "dr_grpo", "cispo", "bnpo", "grpo"] = "auto"
    scale_rewards: Literal["auto", "group", "batch", "none"] = "auto"
    entropy: float = 0.0
    micro_batch: Annotated[int, msgspec.Meta(ge=0)] = 0
    gradient_checkpointing: bool = False
    deepspeed: str = ""
    resume: Annotated[Literal["auto", "never"], NEUTRAL] = "auto"
    best_of: Annotated[Annotated[int, msgspec.Meta(ge=1)] | msgspec.UnsetType, NEUTRAL] = msgspec.UNSET
    """How runs of earlier versions say the algorithm best_of and its `k`; it is read as these, and never written."""

    def __post_init__(self) -> None:
        if self.best_of is msgspec.UNSET:
            return
        if self.best_of > 1:
            found = {"k": self.best_of}
            if self.algorithm not in ("grpo", "best_of") or self.options not in ({}, found):
                raise ValueError(
                    f"trainer.best_of={self.best_of} is the old name of trainer.algorithm=best_of "
                    f"trainer.options.k={self.best_of}, and another algorithm is named beside it: leave it out"
                )
            msgspec.structs.force_setattr(self, "algorithm", "best_of")
            msgspec.structs.force_setattr(self, "options", found)
        msgspec.structs.force_setattr(self, "best_of", msgspec.UNSET)


class TuningConfig(Schema, frozen=True):
    """How a policy that exists is trained on examples: by TRL's SFTTrainer, with the policy's own tokens.

    With `packing` a row of the batch holds as many whole samples as fit into `context` tokens (TRL's best-fit packing),
    and they do not see each other. Without it a row holds one sample. `micro_batch` rows at a time go through the
    model. Samples longer than `context` are left out, never cut. If they are more than the share `left_out` of all,
    that is an error. Every `save_steps` updates a checkpoint is written, from which the same command continues. With
    `minutes` above 0 training ends, with its learning rate brought down, after that time at the latest.
    """

    packing: bool = True
    micro_batch: Annotated[int, msgspec.Meta(ge=1)] = 1
    gradient_checkpointing: bool = False
    left_out: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    save_steps: Annotated[int, msgspec.Meta(ge=1), NEUTRAL] = 100
    minutes: Annotated[float, msgspec.Meta(ge=0)] = 0.0
