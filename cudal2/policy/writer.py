"""Kernels that a policy writes: what its completions hold, whether its model is here or elsewhere."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from cudal2.completion import Found, read
from cudal2.config import PolicyConfig, PromptConfig
from cudal2.policy import endpoint, turns
from cudal2.policy.prompts import Prompt
from cudal2.policy.turns import Attempt, Written
from cudal2.target import Target, find

if TYPE_CHECKING:  # transformers takes seconds to import, and a model elsewhere needs none of it
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from cudal2.policy.plans import Plan


class Writer(Protocol):
    """A policy as searches and evaluations see it. Where answers are `paid` for, no more are asked for than are needed,
    and an answer that is there is not asked for again."""

    paid: bool

    def write(
        self,
        prompts: Sequence[Prompt],
        names: Sequence[str],
        seed: int,
        finished: Callable[[int, Found], None] = lambda place, found: None,
        further: bool = False,
    ) -> list[Found]:
        """What the completion of each prompt holds, in order.

        Each prompt's name says which sample of the run it is: at the next start the same one has the same name, and in
        another work, such as one with another seed, it has another. `finished` is called, in the caller's thread, with
        the place of each and what it holds, while others are still being written. With `further` these prompts were
        answered before: a model that is loaded here is sampled at `policy.further_temperature`, if there is one.
        """
        ...

    def fits(self, first: Prompt, attempts: Sequence[Attempt]) -> Written:
        """The prompt of a turn after these attempts, which shows as many of the last ones as fit. ValueError where the
        first prompt alone does not."""
        ...


class Planner(Protocol):
    """A policy whose weights are here: it can be asked what it would write, before it writes it out."""

    def plans(self, prompts: Sequence[Prompt], count: int) -> "list[list[Plan]]":
        """Of each prompt the plans that its `count` likeliest beginnings state, the likeliest first."""
        ...

    def write_out(
        self, prompts: Sequence[Prompt], plans: "Sequence[Plan]", seed: int, finished: Callable[[int, Found], None]
    ) -> list[Found]:
        """What the completion of each prompt holds that goes on from the prompt's plan, in order; as `Writer.write`."""
        ...


class Here:
    """A model that is loaded here, when it is first asked; ValueError where it cannot be, or does not know the target.
    `limit` is the `prompt.bytes` that its prompts are made with."""

    paid = False

    def __init__(self, config: PolicyConfig, target: Target, limit: int = 0) -> None:
        self._config, self._target, self._limit = config, target, limit

    @cached_property
    def _loaded(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        from cudal2.policy import model as models

        model, tokenizer = models.load(self._config, self._target.name)
        models.check(tokenizer, self._target.name)
        return model, tokenizer

    def write(
        self,
        prompts: Sequence[Prompt],
        names: Sequence[str],
        seed: int,
        finished: Callable[[int, Found], None] = lambda place, found: None,
        further: bool = False,
    ) -> list[Found]:
        config = self._config
        if further and config.further_temperature is not None:
            config = replace(config, temperature=config.further_temperature)
        return write(*self._loaded, prompts, config, self._target, seed, finished, self._limit)

    def plans(self, prompts: Sequence[Prompt], count: int) -> "list[list[Plan]]":
        from cudal2.policy import plans

        return plans.likeliest(*self._loaded, prompts, count, self._config, self._target, self._limit)

    def write_out(
        self, prompts: Sequence[Prompt], plans: "Sequence[Plan]", seed: int, finished: Callable[[int, Found], None]
    ) -> list[Found]:
        begun = [plan.begun for plan in plans]
        return write(*self._loaded, prompts, self._config, self._target, seed, finished, self._limit, begun)

    def fits(self, first: Prompt, attempts: Sequence[Attempt]) -> Written:
        model, tokenizer = self._loaded
        return turns.fitted(tokenizer, first, attempts, self._target, turns.room(model, self._config))


def make(config: PolicyConfig, prompt: PromptConfig, target: str, run: str) -> Writer:
    """The policy as `policy.sampler` says; what is paid for is kept in the folder `run`. Nothing is loaded or asked
    yet. ValueError where an endpoint cannot be asked as the configuration says."""
    if config.sampler == "endpoint":
        endpoint.check(config, prompt)
        return endpoint.Endpoint(config, find(target), Path(run))
    return Here(config, find(target), prompt.bytes)


def write(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Prompt],
    config: PolicyConfig,
    target: Target,
    seed: int,
    finished: Callable[[int, Found], None] = lambda place, found: None,
    limit: int = 0,
    begun: Sequence[Sequence[int]] = (),
) -> list[Found]:
    """What the completion of each prompt holds, in order; sampled as `sampling.sample` does, from where it is `begun`.

    `finished` is called with each while others are still being written. `limit` is the `prompt.bytes` that the prompts
    were made with.
    """

    from cudal2.policy import sampling

    def tell(place: int, completion: str) -> None:
        finished(place, read(completion))

    completions = sampling.sample(model, tokenizer, prompts, config, seed, tell, target, limit, begun)
    return list(map(read, completions))
