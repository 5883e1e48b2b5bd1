"""Sampling that gives the same tokens on one process and on several: each sample has its own random numbers.

torch's draws depend on the whole batch of a process, so that two processes with half a batch each would write other
texts than one with all of it. Here sample 5 of a step has the same numbers on any process.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from cudal2.config import PolicyConfig
from cudal2.policy import adapters, decoding, sampling
from cudal2.policy.adapters import as_merged
from cudal2.policy.decoding import Drafts

Finished = Callable[[Sequence[int], Sequence[int]], None]


class Draws(LogitsProcessor):
    """Draws each row's token, by the temperature, top k and top p of `config`, and masks the scores of all others.

    Later steps of transformers' sampling then have no choice left. Where `decoding` does the sampling, `expected` gives
    the drafts that it begins with, and `finished` is called with the ids of a prompt and of its completion while others
    are still being written.
    """

    def __init__(self, config: PolicyConfig, expected: Callable[[], Drafts] = Drafts) -> None:
        self.choose = sampling.choosing(config)
        self.dtype = config.dtype
        self._generator = torch.Generator()
        self._first = self._all = 0
        self.expected = expected
        self.finished: Finished = lambda prompt, completion: None

    def begin(self, seed: int, first: int, all: int) -> None:
        """Begins a batch: samples number `first` and following, of the `all` that the processes write together."""
        self._generator.manual_seed(seed)
        self._first, self._all = first, all

    def numbers(self, rows: int, tokens: int) -> Tensor:
        """Random numbers (rows, tokens) for this process's next samples, one for each token."""
        everyone = torch.rand(tokens, self._all, generator=self._generator, dtype=torch.float64)
        return everyone[:, self._first : self._first + rows].T

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        """Scores (rows, vocabulary): 0 for the token that each row draws and -inf for all others."""
        tokens = self.choose(scores, self.numbers(len(scores), 1)[:, 0].to(scores.device))
        return cast(FloatTensor, torch.full_like(scores, -torch.inf).scatter_(-1, tokens[:, None], 0.0))


def used_by(model: Any, draws: Draws) -> None:
    """Makes `model`, perhaps wrapped by PEFT, draw its tokens by `draws` whenever it generates."""
    inner = adapters.without(model)
    inner.generate = partial(_generate, inner, draws, inner.generate)


def _generate(model: Any, draws: Draws, plain: Any, *given: Any, **named: Any) -> torch.Tensor:
    was = model.training
    model.eval()  # no dropout: what is sampled is what the policy says
    try:
        with torch.compiler.set_stance("force_eager"):  # what `speed.fuse` compiles is for training
            return _sampled(model, draws, plain, *given, **named)
    finally:
        model.train(was)


def _sampled(model: Any, draws: Draws, plain: Any, *given: Any, **named: Any) -> torch.Tensor:
    config: Any = named.get("generation_config")
    # The trainer casts in the model's own forward alone, which would leave keys and values in float32.
    cast = torch.autocast(model.device.type, torch.bfloat16, enabled=draws.dtype == "bfloat16")
    with cast:
        suits = config is not None and decoding.suits(model, config.max_new_tokens or 0)
    if not suits:
        return plain(*given, logits_processor=LogitsProcessorList([draws]), **named)
    ids, mask = named["input_ids"], named["attention_mask"]
    numbers = draws.numbers(len(ids), config.max_new_tokens).to(ids.device)

    def told(row: int, completion: list[int]) -> None:
        draws.finished(ids[row][mask[row].bool()].tolist(), completion)

    with as_merged(model), cast:
        return decoding.complete(model, ids, mask, numbers, draws.choose, draws.expected().copy(), told)
