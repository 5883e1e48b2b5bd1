"""Kernels that a policy writes: what its completions hold."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cudal2.completion import Found, read
from cudal2.config import PolicyConfig
from cudal2.policy import sampling
from cudal2.policy.sampling import Prompt
from cudal2.target import Target


def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    config: PolicyConfig,
    target: Target,
    seed: int,
    finished: Callable[[int, Found], None] = lambda place, found: None,
    limit: int = 0,
) -> list[Found]:
    """What the completion of each prompt holds, in order; sampled as `sampling.sample` does.

    `finished` is called with each while others are still being written. `limit` is the `prompt.bytes` that the prompts
    were made with.
    """

    def tell(place: int, completion: str) -> None:
        finished(place, read(completion))

    completions = sampling.sample(model, tokenizer, prompts, config, seed, tell, target, limit)
    return list(map(read, completions))
