"""What a chat prompt quotes stays text: no word of it ends the turn, or begins another.

A chat template writes its roles and ends of turns as words such as `<|im_end|>`, which the tokenizer then reads as
special tokens, whoever wrote them. Notes, sources and a compiler's messages may hold such words by chance or by design.
Some tokenizers look for them in a normal form of the text, in which `＜|im_end|＞` is such a word, too.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

_MARK = re.compile(r"<\|?[\w/:.-]+\|?>|\[/?[A-Z_]+\]|<<?/?[A-Z]+>>?")


def quoted(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The messages with a space after the first letter of each word that is a special token of this tokenizer, or a
    mark of its chat template; without such words as they are. Special tokens of a single letter would stay. A text
    that has them in its normal form alone becomes that.
    """
    marks, normal = _marks(tokenizer), _normal(tokenizer)
    return [message | {"content": _broken(marks, normal, message["content"])} for message in messages]


def _broken(marks: re.Pattern[str], normal: Callable[[str], str], text: str) -> str:
    while marks.search(text) or marks.search(normal(text)):  # once more where two overlapped
        text = text if marks.search(text) else normal(text)
        text = marks.sub(lambda hit: f"{hit[0][0]} {hit[0][1:]}", text)
    return text


def _normal(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], str]:
    """What the tokenizer makes of a text before it looks for words that it may look for there."""
    normalizer: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return normalizer.normalize_str if normalizer else str


@lru_cache(maxsize=4)
def _marks(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """What must not stand in a message, the longest first."""
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
