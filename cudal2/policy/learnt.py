"""What a policy's folder states: the prompt that it learnt, and the temperature at which its kernels are best.

So nobody has to say how it is asked. In training it is sampled at 1, for what is learnt from is what it writes. Both
stand in `tokenizer_config.json`, which is saved with every checkpoint, adapters or not, and read with every
tokenizer; transformers keeps keys that it does not know. A name on the hub or a GGUF file states nothing.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from cudal2.config import CampaignConfig, EvalConfig, SearchConfig, SftConfig, TrainConfig
from cudal2.config.policy import KERNEL_LM
from cudal2.policy.locate import locate

KEY = "prompt_template"
"""In tokenizer_config.json. A folder without it is asked with KERNEL_LM, as all were before it."""
HEAT = "sampling_temperature"
"""There, too: the temperature, below 1, of the first kernel for a prompt, but in training. A search draws the others at
1, and all of a policy that does not say."""

Asking = TypeVar("Asking", TrainConfig, SftConfig, SearchConfig, EvalConfig, CampaignConfig)


class Stated(msgspec.Struct, frozen=True):
    """What a policy's folder says of it; "" and 1 where it does not."""

    template: str = msgspec.field(name=KEY, default="")
    temperature: Annotated[float, msgspec.Meta(gt=0, le=1)] = msgspec.field(name=HEAT, default=1.0)


def stated(place: str) -> Stated:
    """What the policy in this folder states. Raises ValueError where its tokenizer's configuration cannot be read."""
    file = Path(place) / "tokenizer_config.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Stated)
    except (FileNotFoundError, NotADirectoryError):
        return Stated()
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file} cannot be read ({error}); save the policy anew") from error


def settled(config: Asking, path: str | None) -> Asking:
    """The configuration with the name of a template and a temperature, which its records then tell: what is asked for,
    else what the policy at `path` states. None stands for no policy, and is never an error; nor is a path that holds
    none, for who loads it says so.

    Raises ValueError where a kernel LM, which has only the words of its own prompt, would be asked with another one, or
    another policy with a kernel LM's. Otherwise another template than the policy learnt is told of in one line.
    """
    said, chosen = Stated(), config.prompt.template
    if path is not None and config.policy.sampler != "endpoint":
        try:
            place = locate(path, config.target)
        except ValueError:
            place = ""
        said = stated(place) if place else said
    learnt = said.template
    prompt = replace(config.prompt, template=chosen or learnt or KERNEL_LM)
    if learnt and prompt.template != learnt:
        if prompt.bare or replace(config.prompt, template=learnt).bare:
            raise ValueError(
                f"the policy {path or place} learnt the prompt {learnt} and cannot read {chosen}: leave prompt out, or "
                f"say prompt.template={learnt}"
            )
        _tell(f"{path or place} learnt prompt.template={learnt}, and is asked with {chosen}")
    policy = config.policy
    if policy.temperature is None:
        stable = said.temperature < 1.0 and not isinstance(config, TrainConfig | SftConfig)
        further = policy.further_temperature or (1.0 if stable else None)
        policy = replace(policy, temperature=said.temperature if stable else 1.0, further_temperature=further)
    return replace(config, prompt=prompt, policy=policy)


@cache
def _tell(text: str) -> None:
    """One line, once in a process however many parts of a verb settle the same prompt."""
    print(text, file=sys.stderr, flush=True)
