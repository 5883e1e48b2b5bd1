"""A policy's turns: it sees what became of its kernel and writes again (after Kevin, arXiv:2507.11948).

Of a turn the next one keeps the kernel and the verdict; what was thought on the way is dropped, as Kevin does it. Where
even these are too long for the model, the oldest turns go first.
"""

import random
from collections.abc import Sequence

import msgspec
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.config import PolicyConfig
from cudal2.policy import prompts
from cudal2.policy.prompts import Message
from cudal2.policy.sampling import Prompt, context, tokenize
from cudal2.records import Verdict
from cudal2.source import fenced
from cudal2.target import Target

NO_KERNEL = "(An answer without a kernel.)"
"""Stands for a completion in which there was none."""

UNBOUNDED = 1 << 30
"""Tokens that a model reads at once which states no limit."""


class Attempt(msgspec.Struct, frozen=True):
    """A turn that is over: the source it held, "" for none, and its verdict; None where the harness gave none."""

    source: str
    verdict: Verdict | None


class Written(msgspec.Struct, frozen=True):
    """What a turn is written from: the prompt, its tokens, and how many attempts it shows."""

    prompt: Prompt
    ids: list[int]
    shown: int

    @property
    def told(self) -> str:
        """The last message: of a first turn the whole prompt, of a later one what is said of the attempt before."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


def conversation(first: list[Message], attempts: Sequence[Attempt], target: Target) -> list[Message]:
    """The first prompt, and for each attempt what the policy wrote and what it is told of it.

    An attempt that nobody judged is left out, as nothing can be said of it.
    """
    messages = list(first)
    for attempt in attempts:
        if attempt.verdict is not None:
            said = fenced(attempt.source, target.language) if attempt.source else NO_KERNEL
            messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": prompts.told(attempt.verdict, target)})
    return messages


def fitted(
    tokenizer: PreTrainedTokenizerBase, first: Prompt, attempts: Sequence[Attempt], target: Target, room: int
) -> Written:
    """What the next turn is written from, in at most `room` tokens: the last attempts, as many as fit, maybe none.

    Raises ValueError with the remedy where the first prompt alone does not fit.
    """
    judged = [attempt for attempt in attempts if attempt.verdict is not None]
    for dropped in range(len(judged) + 1):
        prompt = conversation(first, judged[dropped:], target) if isinstance(first, list) else first
        ids = tokenize(tokenizer, prompt)
        if len(ids) <= room:
            return Written(prompt, ids, len(judged) - dropped)
    raise ValueError(
        f"the prompt takes {len(ids)} tokens, and what the model reads at once has room for {max(room, 0)} beside the "
        "completion: lower policy.max_new_tokens, prompt.exemplars or prompt.failures, or take a model that reads more"
    )


def room(model: PreTrainedModel, config: PolicyConfig) -> int:
    """The tokens of the longest prompt that leaves `config.max_new_tokens` for the completion."""
    longest = context(model.config, config)
    return (UNBOUNDED if longest is None else longest) - config.max_new_tokens


def seeded(seed: int, turn: int) -> int:
    """The seed of a turn: an attempt that nobody judged is not to be written once more, word for word."""
    return random.Random(f"{seed} {turn}").getrandbits(32) if turn else seed
