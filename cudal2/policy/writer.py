"""Kernels that a policy writes: completions of prompts, as sources."""

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.config import PolicyConfig
from cudal2.policy import sampling
from cudal2.policy.sampling import Prompt
from cudal2.source import extract
from cudal2.target import Target


def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    config: PolicyConfig,
    target: Target,
    seed: int,
) -> list[str]:
    """A source for each prompt, in order, "" where the completion holds none; otherwise as `sampling.sample` says."""
    completions = sampling.sample(model, tokenizer, prompts, config, seed)
    return [extract(completion, target) or "" for completion in completions]
