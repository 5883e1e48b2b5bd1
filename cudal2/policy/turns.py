"""A policy's turns: it sees the verdict on its kernel and writes again (after Kevin, arXiv:2507.11948).

Later turns see the kernel and the verdict of a turn; other text in the answer is dropped, as in Kevin. If even these
are too long for the model's context, the oldest turns are dropped first.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from cudal2.completion import fenced
from cudal2.config import PolicyConfig
from cudal2.policy import prompts
from cudal2.policy.prompts import Prompt
from cudal2.records import Verdict
from cudal2.target import Target

if TYPE_CHECKING:  # a model elsewhere, and a report on its answers, need no transformers
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NO_KERNEL = "(An answer without a kernel.)"
"""Replaces an answer that contained no kernel."""

UNBOUNDED = 1 << 30
"""The context length of a model that states none."""


class Attempt(msgspec.Struct, frozen=True):
    """A finished turn: the source that it wrote ("" for none) and the verdict (None where the harness failed)."""

    source: str
    verdict: Verdict | None


class Written(msgspec.Struct, frozen=True):
    """The prompt of a turn, its token ids (of a model elsewhere as many numbers as they may be), and how many earlier
    attempts it shows."""

    prompt: Prompt
    ids: Sequence[int]
    shown: int

    @property
    def told(self) -> str:
        """The last message: in a first turn the whole prompt, in a later turn the verdict on the attempt before."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


def conversation(first: Prompt, attempts: Sequence[Attempt], target: Target) -> Prompt:
    """The first prompt, then for each attempt the policy's answer and the message about its verdict. A first prompt
    that is no message is the kernel LM's: its answer is the bare source, and the verdict a token.

    An attempt without a verdict is left out, as there is nothing to say about it.
    """
    judged = [(attempt.source, attempt.verdict) for attempt in attempts if attempt.verdict is not None]
    if isinstance(first, str):
        if not judged:
            return first
        pairs = [(source, prompts.token(verdict)) for source, verdict in judged]
        messages = [{"role": "user", "content": first}]
    else:
        pairs = [
            (fenced(source, target.language) if source else NO_KERNEL, prompts.told(verdict, target))
            for source, verdict in judged
        ]
        messages = list(first)
    for said, told in pairs:
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return messages


def fitted(
    tokenizer: "PreTrainedTokenizerBase", first: Prompt, attempts: Sequence[Attempt], target: Target, room: int
) -> Written:
    """`fitting` for a tokenizer that is here; ValueError also where it is a kernel LM's that was taught no turns."""
    from cudal2.policy.sampling import tokenize
    from cudal2.policy.tokenizer import check_turns

    if isinstance(first, str):
        check_turns(tokenizer)
    return fitting(partial(tokenize, tokenizer), first, attempts, target, room)


def fitting(
    tokens: Callable[[Prompt], Sequence[int]], first: Prompt, attempts: Sequence[Attempt], target: Target, room: int
) -> Written:
    """The prompt of the next turn, in at most `room` tokens: it shows as many of the last attempts as fit.

    Raises ValueError with the remedy where the first prompt alone does not fit.
    """
    judged = [attempt for attempt in attempts if attempt.verdict is not None]
    for dropped in range(len(judged) + 1):
        prompt = conversation(first, judged[dropped:], target)
        ids = tokens(prompt)
        if len(ids) <= room:
            return Written(prompt, ids, len(judged) - dropped)
    raise ValueError(
        f"the prompt takes {len(ids)} tokens, and what the model reads at once has room for {max(room, 0)} beside the "
        "completion: lower policy.max_new_tokens, prompt.exemplars or prompt.failures, or take a model that reads more"
    )


def room(model: "PreTrainedModel", config: PolicyConfig) -> int:
    """The tokens of the longest prompt that leaves `config.max_new_tokens` for the completion."""
    from cudal2.policy.sampling import context

    longest = context(model.config, config)
    return (UNBOUNDED if longest is None else longest) - config.max_new_tokens


def seeded(seed: int, turn: int) -> int:
    """The seed of a turn. It differs between turns: after an attempt without a verdict the prompt is the same, but the
    next attempt should not be."""
    return random.Random(f"{seed} {turn}").getrandbits(32) if turn else seed
