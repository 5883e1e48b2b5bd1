"""What a model is taught to answer `prompts/instruct.jinja` with; `source.extract` finds the kernel in it again."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from cudal2 import corpus
from cudal2.config import PromptConfig
from cudal2.source import fenced
from cudal2.target import Target

BARE = "kernel_lm"
"""The prompt that is completed by the source alone."""


def complete(source: str, prompt: PromptConfig, target: Target) -> str:
    """The completion of such a prompt: how the kernel goes about it, where it begins with a plan (`corpus.plan`), and
    then the whole source in one fenced block. Of the kernel LM's prompt the source is all.
    """
    if prompt.template == BARE:
        return source
    setting = corpus.stated(source, target)
    families = {family.name: family.summary for family in corpus.families(target)} if setting else {}
    words = f"{families[setting[0]].rstrip('.')}.\n\n" if setting else ""
    return words + fenced(source, target.language)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that the chat template puts after an answer; where that is no special one, the one that ends texts."""
    answer = "an answer"
    chat = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    text: Any = tokenizer.apply_chat_template(chat, tokenize=False)
    after: Sequence[int] = tokenizer(text.rpartition(answer)[2], add_special_tokens=False)["input_ids"]
    own = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return after[0] if after and after[0] in own else tokenizer.eos_token_id
