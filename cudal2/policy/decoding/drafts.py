"""Guesses of what comes next in a text, from texts that exist: nothing is computed for them."""

import random
from array import array
from collections import ChainMap
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import get_args

from transformers import PreTrainedTokenizerBase

from cudal2 import corpus
from cudal2.problem import Layout
from cudal2.target import Target

CONTEXTS = 16, 4
"""What came after the last so many tokens the last time is the guess; after fewer where these have not been seen."""
SAMPLES = 64
"""So many sources of the families are enough for ten tokens at a time; four times as many give one token more."""


class Drafts:
    """Texts, and what came after each short run of tokens in them."""

    def __init__(self, texts: Iterable[Sequence[int]] = ()) -> None:
        self._after: ChainMap[int, tuple[array, int]] = ChainMap()
        for text in texts:
            self.learn(array("i", text), 0)

    def copy(self) -> "Drafts":
        """Drafts that know the same, and whatever they learn alone."""
        found = Drafts()
        found._after = self._after.new_child()
        return found

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
