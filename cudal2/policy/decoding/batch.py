"""Completions of a batch of prompts, each text at its own pace, with drafts: guesses of what comes next in a text, from
texts that exist, for which nothing is computed."""

import random
from array import array
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cudal2 import corpus
from cudal2.policy.decoding.step import Step, fits
from cudal2.problem import Layout
from cudal2.target import Target

LONG = 2048
"""On a processor completions of at least so many tokens are worth it; shorter ones are left to `generate`. On a GPU all
are: 128 kernels of 170 tokens took 0.44 s, with `generate` 1.2 to 1.5 (an H200, the kernel LM)."""
AHEAD = 16
"""Tokens of each text that one pass reads: its last one, and a draft."""
CHUNK = 512
"""So many tokens are drawn at once: their probabilities take 400 KB each with a vocabulary of 50,000."""

CONTEXTS = 16, 4
"""What came after the last so many tokens the last time is the guess; after fewer where these have not been seen."""
SAMPLES = 64
"""So many sources of the families are enough for ten tokens at a time; four times as many give one token more."""

Choose = Callable[[Tensor, Tensor], Tensor]
"""Takes scores (n, vocabulary) and random numbers (n) from 0 to 1, and gives n tokens."""
Finished = Callable[[int, list[int]], None]
"""Takes a row's number and the tokens of its completion."""


class Drafts:
    """Texts, and what came after each short run of tokens in them."""

    def __init__(self, texts: Iterable[Sequence[int]] = ()) -> None:
        self._after: ChainMap[int, tuple[array, int]] = ChainMap()
        for text in texts:
            self.learn(array("i", text), 0)

    def copy(self) -> "Drafts":
        """Drafts that know the same, and whatever they learn alone."""
        twin = Drafts()
        twin._after = self._after.new_child()
        return twin

    def learn(self, text: array, start: int) -> None:
        """Remembers a text from the token number `start` on. It may grow later; `learn` is then called again."""
        for size in CONTEXTS:
            for end in range(max(start, size), len(text)):
                self._after[_key(text, end - size, end)] = text, end

    def guess(self, text: array, most: int) -> Sequence[int]:
        """At most `most` tokens that may follow the text; none where nothing like its end is known."""
        for size in CONTEXTS:
            if len(text) >= size and (found := self._after.get(_key(text, len(text) - size, len(text)))):
                like, place = found
                return like[place : place + most]
        return ()


def _key(text: array, start: int, end: int) -> int:
    """Two runs of tokens with the same key only make a worse guess."""
    return hash(text[start:end].tobytes())


@lru_cache(maxsize=4)
def expected(tokenizer: PreTrainedTokenizerBase, target: Target, samples: int = SAMPLES) -> Drafts:
    """Of so many sources that the target's families render, most of what a policy writes that has learnt from them."""
    rng, layouts = random.Random(0), get_args(Layout)
    asked = product(range(samples // len(layouts)), layouts) if corpus.families(target) else ()
    drawn = (corpus.draw(target, layout, rng) for _, layout in asked)
    texts = [corpus.plan(sample) + sample.source for sample in drawn]
    return Drafts(tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else ())


def suits(model: Any, tokens: int) -> bool:
    """Whether `complete` is for this model and completions of so many tokens: a Llama on a processor, or on a GPU if
    its heads fit into a program of the attention there."""
    shape, device = model.config, model.device.type
    if shape.model_type != "llama" or (device == "cpu" and tokens < LONG):
        return False
    shared = shape.num_attention_heads // shape.num_key_value_heads
    kept = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else model.dtype
    return device == "cpu" or (device == "cuda" and fits(shape.head_dim, shared, kept.itemsize))


@torch.no_grad()
def complete(
    model: Any,
    ids: Tensor,
    given: Tensor,
    numbers: Tensor,
    choose: Choose,
    drafts: Drafts,
    finished: Finished = lambda row, completion: None,
) -> Tensor:
    """The prompts `ids` (rows, length), padded on the left where the mask `given` is 0, with their completions after
    them, padded on the right, as `generate` returns them.

    Of `numbers` (rows, most) each decides one token, so a completion has at most `most` tokens, and which were foretold
    makes no difference but for rounding. `drafts` learn from all that is written. `finished` is called once for each
    row as soon as it has ended, while others are still being written.
    """
    length, most = ids.shape[1], numbers.shape[1]
    ends, pad = _ends(model), model.generation_config.pad_token_id
    read = model(input_ids=ids, attention_mask=given, position_ids=_positions(given), use_cache=True, logits_to_keep=1)
    drawn = choose(read.logits[:, -1].float(), numbers[:, 0])[:, None].tolist()
    numbers = torch.nn.functional.pad(numbers, (0, AHEAD))
    texts, guesses = [array("i") for _ in ids], [array("i") for _ in ids]
    live = list(range(len(ids)))
    step = Step(model, read.past_key_values, given, length + most, AHEAD)
    del read
    try:
        while True:
            for row, tokens in zip(list(live), drawn):
                text, before = texts[row], len(texts[row])
                text.extend(_believed(tokens, guesses[row], ends)[: most - before])
                drafts.learn(text, before)
                if text[-1] in ends or len(text) == most:
                    live.remove(row)
                    finished(row, text.tolist())
            if not live:
                return _padded(ids, texts, pad)
            for row in live:
                guesses[row] = array("i", drafts.guess(texts[row], AHEAD - 1))
            asked = [[texts[row][-1], *guesses[row]] for row in live]
            drawn = _drawn(step, live, asked, [len(texts[row]) for row in live], numbers, choose)
    finally:
        step.close()


def _believed(tokens: list[int], guess: array, ends: set[int]) -> list[int]:
    """The drawn tokens up to the first that was not foretold, with it: those after it were drawn for another text. And
    only up to the first that ends a text."""
    for number, token in enumerate(tokens):
        if token in ends or number == len(guess) or guess[number] != token:
            return tokens[: number + 1]
    return tokens


def _drawn(
    step: Step, live: list[int], asked: list[list[int]], written: list[int], numbers: Tensor, choose: Choose
) -> list[list[int]]:
    """The tokens that are drawn after each of those that a pass reads, of which the first is the last one `written`."""
    scores = step(live, asked, written)
    places = torch.tensor(written, device=numbers.device)[:, None] + torch.arange(AHEAD, device=numbers.device)
    mine = numbers[torch.tensor(live, device=numbers.device)].gather(1, places).view(-1)
    chunks = zip(scores.flatten(0, 1).split(CHUNK), mine.split(CHUNK))
    return torch.cat([choose(*chunk) for chunk in chunks]).view(len(live), AHEAD).tolist()


def _ends(model: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends}


def _positions(given: Tensor) -> Tensor:
    return (given.long().cumsum(-1) - 1).clamp_(min=0)


def _padded(ids: Tensor, texts: list[array], pad: int) -> Tensor:
    longest = max(map(len, texts))
    rows = [[*text, *[pad] * (longest - len(text))] for text in texts]
    return torch.cat([ids, torch.tensor(rows, dtype=ids.dtype, device=ids.device)], 1)
