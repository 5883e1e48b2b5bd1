"""Quoted text in the chats of models stays text: no word of it can end a turn or begin another.

A chat template marks roles and ends of turns by words such as `<|im_end|>`, which a tokenizer reads as special tokens,
wherever they come from. Notes, sources and compiler messages may contain such words by chance or on purpose. Some
tokenizers look for them in a normal form of the text, in which `＜|im_end|＞` is such a word, too.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

TURNS = 8
"""The number of times that spaces are tried."""
_MARK = re.compile(r"<\|?[\w/:.-]+\|?>|\[/?[A-Z_]+\]|<<?/?[A-Z]+>>?")


def quoted(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The messages with a space after the first letter of each word that is a special token of this tokenizer or a
    mark of its chat template; other messages are unchanged. A special token of a single letter would stay. A text
    with such words only in its normal form is replaced by this form first. If a space does not help, the letter is
    dropped.
    """
    marks, normal = _marks(tokenizer), _normal(tokenizer)
    return [message | {"content": _broken(marks, normal, message["content"])} for message in messages]


def _broken(marks: re.Pattern[str], normal: Callable[[str], str], text: str) -> str:
    turn = 0
    while marks.search(text) or marks.search(normal(text)):  # once more where two overlapped
        text = text if marks.search(text) else normal(text)
        # Some normal forms have no spaces: then the letter is dropped, which ends, for the text gets shorter.
        text = marks.sub(lambda hit: f"{hit[0][0]} {hit[0][1:]}", text) if turn < TURNS else marks.sub(_shorter, text)
        turn += 1
    return text


def _shorter(hit: re.Match[str]) -> str:
    return hit[0][1:]


def _normal(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], str]:
    """The function by which the tokenizer normalises a text before it looks for special tokens."""
    normalizer: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return normalizer.normalize_str if normalizer else str


@lru_cache(maxsize=4)
def _marks(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """A pattern of all words that a message must not contain, the longest first."""
    question, answer = "a question that nobody asks", "an answer that nobody gives"
    chat = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    written: Any = tokenizer.apply_chat_template(chat, tokenize=False)
    around = [hit.group() for hit in _MARK.finditer(written)]
    added, template = tokenizer.added_tokens_decoder.values(), str(tokenizer.chat_template)
    special = [token.content for token in added if token.special or token.content in template]
    every = (*around, *special, *tokenizer.all_special_tokens)
    words = {word for word in (*every, *map(_normal(tokenizer), every)) if len(word.strip()) > 1}
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
