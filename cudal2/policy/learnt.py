"""Which prompt a policy learnt: what its folder states, and the template that it is therefore asked with.

It stands in `tokenizer_config.json`, which is saved with every checkpoint, adapters or not, and read with every
tokenizer; transformers keeps keys that it does not know. A name on the hub or a GGUF file states nothing.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from cudal2.config import CampaignConfig, EvalConfig, SearchConfig, SftConfig, TrainConfig
from cudal2.config.policy import KERNEL_LM
from cudal2.policy.locate import locate

KEY = "prompt_template"
"""In tokenizer_config.json. A folder without it is asked with KERNEL_LM, as all were before it."""

Asking = TypeVar("Asking", TrainConfig, SftConfig, SearchConfig, EvalConfig, CampaignConfig)


def stated(place: str) -> str:
    """The name of the template that the policy in this folder learnt; "" where it does not say.

    Raises ValueError where its tokenizer's configuration cannot be read.
    """
    file = Path(place) / "tokenizer_config.json"
    try:
        return str(json.loads(file.read_bytes()).get(KEY, ""))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); save the policy anew") from error


def settled(config: Asking, path: str | None) -> Asking:
    """The configuration with the name of a template, which its records then tell: the one that is asked for, else the
    one that the policy at `path` learnt. None stands for no policy, and is never an error; nor is a path that holds
    none, for who loads it says so.

    Raises ValueError where a kernel LM, which has only the words of its own prompt, would be asked with another one, or
    another policy with a kernel LM's. Otherwise another template than the policy learnt is told of in one line.
    """
    learnt, chosen = "", config.prompt.template
    if path is not None and config.policy.sampler != "endpoint":
        try:
            place = locate(path, config.target)
        except ValueError:
            place = ""
        learnt = stated(place) if place else ""
    prompt = replace(config.prompt, template=chosen or learnt or KERNEL_LM)
    if learnt and prompt.template != learnt:
        if prompt.bare or replace(config.prompt, template=learnt).bare:
            raise ValueError(
                f"the policy {path or place} learnt the prompt {learnt} and cannot read {chosen}: leave prompt out, or "
                f"say prompt.template={learnt}"
            )
        _tell(f"{path or place} learnt prompt.template={learnt}, and is asked with {chosen}")
    return replace(config, prompt=prompt)


@cache
def _tell(text: str) -> None:
    """One line, once in a process however many parts of a verb settle the same prompt."""
    print(text, file=sys.stderr, flush=True)
