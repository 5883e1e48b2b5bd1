"""The likeliest plans of a policy, by beam search: what it would write for a prompt, before it writes it out.

A source may begin with its plan (`corpus.plan`), a tenth of its tokens or less. Who draws many texts to choose among
them writes the same few again and again: of 64 for a shape off the lattice the shipped policy for Hopper wrote six
plans, where 64 beams hold 29 and take as long as drawing the beginnings of these texts (experiments/h200/learning,
"Plans before texts"). Beam search is transformers' own.
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from cudal2 import corpus
from cudal2.config import PolicyConfig
from cudal2.corpus import Knobs
from cudal2.policy import memory, sampling
from cudal2.policy.prompts import Prompt
from cudal2.policy.tokenizer import encode_source, is_kernel_lm
from cudal2.target import Target

DRAWS = 16
"""So many plans of each family are drawn to learn how many tokens a plan has."""
SENTENCE = 64
"""Tokens that a policy in words may write before its plan; a kernel LM begins with it."""


class Plan(NamedTuple):
    """What an answer begins with, in tokens, so that the policy can go on there; and the setting that it states."""

    begun: list[int]
    family: str
    knobs: Knobs


@memory.hint(memory.SAMPLED)
def likeliest(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    count: int,
    config: PolicyConfig,
    target: Target,
    limit: int = 0,
) -> list[list[Plan]]:
    """Of each prompt the plans, each once, that its `count` likeliest beginnings state, the likeliest first.

    There are none of a policy that writes no plans. `limit` is the `prompt.bytes` that the prompts were made with.
    Raises ValueError as `sampling.sample` does.
    """
    ids = sampling.encoded(model, tokenizer, prompts, config, limit)
    most = _tokens(tokenizer, target)
    at_once = max(1, memory.at_once(model, max(map(len, ids), default=0) + most) // count)
    found = list[list[Plan]]()
    for start in range(0, len(ids), at_once):
        rows = _beams(model, tokenizer, ids[start : start + at_once], count, most)
        found += [_distinct(tokenizer, rows[first : first + count], target) for first in range(0, len(rows), count)]
    return found


def _beams(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]], count: int, most: int
) -> list[list[int]]:
    """Of each prompt its `count` likeliest continuations by `most` tokens, one behind the other."""
    beams = GenerationConfig(
        do_sample=False, num_beams=count, num_return_sequences=count, length_penalty=0.0, max_new_tokens=most
    )
    with sampling.writing(model, tokenizer, prompts) as inputs:
        ids = model.generate(**inputs, generation_config=beams)
        return ids[:, inputs["input_ids"].shape[1] :].tolist()


def _distinct(tokenizer: PreTrainedTokenizerBase, beams: Sequence[list[int]], target: Target) -> list[Plan]:
    found = dict[str, Plan]()
    for begun in beams:
        text: Any = tokenizer.decode(begun)  # with special tokens: what has ended cannot be gone on with
        setting = corpus.stated(text[max(text.find(corpus.PLAN), 0) :], target)
        if setting and begun[-1] not in tokenizer.all_special_ids:
            found.setdefault(str(setting), Plan(begun, *setting))
    return list(found.values())


@lru_cache(maxsize=4)
def _tokens(tokenizer: PreTrainedTokenizerBase, target: Target) -> int:
    """So many tokens at the beginning of an answer hold its plan."""
    rng = random.Random(0)
    drawn = [
        corpus.Sample(family.name, "tn", {name: rng.choice(values) for name, values in family.knobs.items()}, "")
        for family in corpus.families(target)
        for _ in range(DRAWS)
    ]
    longest = max(map(len, encode_source(tokenizer, list(map(corpus.plan, drawn)))), default=1)
    return longest + (0 if is_kernel_lm(tokenizer) else SENTENCE)
