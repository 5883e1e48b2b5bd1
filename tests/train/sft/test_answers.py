"""An answer that is taught is one that is understood: the kernel is found in it again, letter for letter."""

import random

import pytest
import tiny_gguf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cudal2 import completion, corpus
from cudal2.config import PromptConfig
from cudal2.target import find
from cudal2.train.sft.answers import complete, end_of_turn

INSTRUCT = PromptConfig(template="instruct")


@pytest.mark.parametrize("name", ["cpu", "sm_90a"])
def test_the_kernel_is_found_again_with_and_without_a_plan(name):
    target, rng = find(name), random.Random(0)
    for _ in range(5):
        sample = corpus.draw(target, "tn", rng)
        planned = corpus.plan(sample) + sample.source
        for text in (sample.source, planned, sample.source.replace("{", "{ // ```\n```\n````cpp", 1)):
            assert completion.extract(complete(text, INSTRUCT, target), target) == text
            assert complete(text, PromptConfig(), target) == text
        summary = next(one.summary for one in corpus.families(target) if one.name == sample.family)
        assert complete(planned, INSTRUCT, target).startswith(summary.rstrip("."))
        assert complete(sample.source, INSTRUCT, target).startswith("```")


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (tiny_gguf.TEMPLATE, "</s>"),
        ("{% for m in messages %}<turn>{{ m.content }}<over>\n{% endfor %}", "<over>"),
        ("{% for m in messages %}{{ m.content }} {% endfor %}", "</s>"),
    ],
)
def test_an_answer_ends_as_the_chat_template_ends_it(template, end):
    core = Tokenizer(models.WordLevel({"<unk>": 0, "an": 1}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token="</s>", extra_special_tokens=["<turn>", "<over>", "<s>"]
    )
    words.chat_template = template
    assert words.convert_ids_to_tokens(end_of_turn(words)) == end
