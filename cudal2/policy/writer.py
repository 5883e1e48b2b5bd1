"""Kernels that a policy writes: the sources in its completions."""

from collections.abc import Callable, Sequence

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
    finished: Callable[[int, str], None] = lambda place, source: None,
    limit: int = 0,
) -> list[str]:
    """A source for each prompt, in order, "" where the completion holds none; sampled as `sampling.sample` does.

    `finished` is called with each source while others are still being written. `limit` is the `prompt.bytes` that the
    prompts were made with.
    """

    def tell(place: int, completion: str) -> None:
        finished(place, extract(completion, target) or "")

    completions = sampling.sample(model, tokenizer, prompts, config, seed, tell, target, limit)
    return [extract(completion, target) or "" for completion in completions]
