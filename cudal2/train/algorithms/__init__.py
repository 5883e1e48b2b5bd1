"""The algorithms of RL: what a step's rewards teach. `trainer.algorithm` is the name of a module here.

To add one, add a file. It defines

- `TRL`: the options of TRL's GRPOConfig in which it differs from DEFAULTS, such as importance_sampling_level;
- `advantages(rewards, scale, options)`: the advantages of a step's rewards, both of shape (groups, samples). A group
  answers one prompt. A reward is NaN where there was no verdict; its advantage counts as 0 in any case.
  `scale` is TRL's scale_rewards: group, batch or none;
- where it has keys of its own, `Options`: the record of what `trainer.options` may hold.
"""

import sys
from types import ModuleType
from typing import Any

import msgspec
from torch import Tensor
from trl.trainer.utils import nanstd

from cudal2 import files
from cudal2.config import Schema, TrainConfig, TrainerConfig

DEFAULTS: dict[str, Any] = {"loss_type": "dapo", "beta": 0.0, "epsilon": 0.2, "scale_rewards": "group"}
"""What TRL is told where neither the algorithm nor the configuration says otherwise."""
KEYS = {"loss": "loss_type", "beta": "beta", "epsilon": "epsilon", "scale_rewards": "scale_rewards"}
"""The keys of `trainer` that may be auto, and TRL's names for them."""
CISPO = 5.0
"""Where CISPO (arXiv:2506.13585) cuts off the weight of a token; what TRL recommends. Elsewhere TRL takes `epsilon`."""


class Options(Schema, frozen=True):
    """The keys of an algorithm that has none."""

    def check(self, config: TrainConfig) -> None:
        """Raises ValueError where the algorithm cannot work in such a run."""


def trl(trainer: TrainerConfig) -> dict[str, Any]:
    """The algorithm's options for TRL's GRPOConfig; what the keys of `trainer` say goes before what it chooses."""
    chosen = DEFAULTS | _module(trainer).TRL
    given = {name: getattr(trainer, key) for key, name in KEYS.items() if getattr(trainer, key) != "auto"}
    if given.keys() & {"loss_type", "epsilon"}:
        chosen.pop("epsilon_high", None)  # it belongs to the algorithm's own loss and epsilon
    chosen |= given
    if chosen["loss_type"] == "cispo":
        chosen.setdefault("epsilon_high", CISPO)
    return chosen


def advantages(rewards: Tensor, trainer: TrainerConfig) -> Tensor:
    """The algorithm's advantages of the rewards (groups, samples), of the same shape; 0 where a reward is NaN."""
    values = _module(trainer).advantages(rewards, trl(trainer)["scale_rewards"], options(trainer))
    return values.where(~rewards.isnan(), 0.0).nan_to_num(0.0)


def options(trainer: TrainerConfig) -> Options:
    """The algorithm's own keys; ValueError where there is no such algorithm, key or value."""
    record: type[Options] = getattr(_module(trainer), "Options", Options)
    try:
        return msgspec.convert(trainer.options, record)
    except msgspec.ValidationError as error:
        known = ", ".join(f"trainer.options.{name}" for name in record.__struct_fields__) or "no options"
        raise ValueError(f"trainer.options={trainer.options}: {error}; {trainer.algorithm} has {known}") from error


def settled(trainer: TrainerConfig) -> TrainerConfig:
    """The same configuration with the algorithm's choice in place of every auto, and all of its options."""
    chosen = trl(trainer)
    named = {key: chosen[name] for key, name in KEYS.items()}
    return msgspec.structs.replace(trainer, **named, options=msgspec.to_builtins(options(trainer)))


def scaled(advantages: Tensor, rewards: Tensor, scale: str) -> Tensor:
    """The advantages (groups, samples) divided by the standard deviation of the rewards of each group or of the whole
    batch, as `scale` says, or by nothing (none). Of a single reward that deviation is unknown, which makes NaN."""
    if scale == "none":
        return advantages
    deviation = nanstd(rewards, dim=1, keepdim=True) if scale == "group" else nanstd(rewards.flatten())
    return advantages / (deviation + 1e-4)  # as in TRL


def _module(trainer: TrainerConfig) -> ModuleType:
    return files.plugin(sys.modules[__name__], trainer.algorithm, "trainer.algorithm")
