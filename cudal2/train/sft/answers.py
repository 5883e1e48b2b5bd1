"""The answers to `prompts/instruct.jinja` that a model is trained on; `completion.extract` finds the kernel in them."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from cudal2 import corpus
from cudal2.completion import fenced
from cudal2.config import PromptConfig
from cudal2.target import Target


def complete(source: str, prompt: PromptConfig, target: Target) -> str:
    """The completion of such a prompt: a sentence on the approach, if the source begins with a plan (`corpus.plan`),
    then the whole source in one fenced block. For the kernel LM's prompt only the source.
    """
    if prompt.bare:
        return source
    setting = corpus.stated(source, target)
    families = {family.name: family.summary for family in corpus.families(target)} if setting else {}
    words = f"{families[setting[0]].rstrip('.')}.\n\n" if setting else ""
    return words + fenced(source, target.language)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of the token that the chat template puts after an answer, or of the end-of-text token."""
    answer = "an answer"
    chat = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    text: Any = tokenizer.apply_chat_template(chat, tokenize=False)
    after: Sequence[int] = tokenizer(text.rpartition(answer)[2], add_special_tokens=False)["input_ids"]
    own = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return after[0] if after and after[0] in own else tokenizer.eos_token_id
