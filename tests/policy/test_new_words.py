"""A kernel LM can be taught families that were made after it: their lines become words, and no other changes."""

import random

import pytest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from cudal2 import corpus
from cudal2.corpus.family import form
from cudal2.policy import tokenizer
from cudal2.policy.new_words import prepare_lines
from cudal2.target import CPU

FAMILIES = corpus.families(CPU)


def drawn(names: set[str], count: int, seed: int) -> list[str]:
    rng, found = random.Random(seed), list[str]()
    while len(found) < count:
        family = rng.choice([one for one in FAMILIES if one.name in names])
        if knobs := corpus.allowed(family, form("tn"), "f32", rng):
            found.append(corpus.render(family, knobs, "tn"))
    return found


@pytest.fixture
def parted() -> tuple[set[str], set[str]]:
    """The families that a policy knows, and one that came later."""
    *known, late = sorted(family.name for family in FAMILIES if "tn" in family.layouts)
    return set(known), {late}


def model_of(words) -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(words), tie_word_embeddings=True, **sizes))


def test_lines_of_a_later_family_become_words_and_all_others_keep_their_tokens(parted, tmp_path):
    known, late = parted
    old, new, unseen = drawn(known, 400, 0), drawn(late, 200, 1), drawn(late, 50, 2)
    words = tokenizer.train(old, 4096)
    model, size = model_of(words), len(words)
    before = tokenizer.encode_source(words, old)
    long = sum(map(len, tokenizer.encode_source(words, unseen)))
    table = model.get_input_embeddings().weight.detach().clone()
    count = prepare_lines(model, words, [*old, *new], 500)
    assert 0 < count <= 500 and len(words) == size + count == model.config.vocab_size
    assert tokenizer.encode_source(words, old) == before
    encoded = tokenizer.encode_source(words, unseen)
    assert sum(map(len, encoded)) < long / 4
    words.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode_source(again, unseen) == encoded
    assert again.batch_decode(encoded) == unseen
    grown = model.get_output_embeddings().weight
    assert grown[:size].equal(table)
    assert grown is model.get_input_embeddings().weight
    low, high = table.min(0).values, table.max(0).values
    assert ((grown[size:] >= low) & (grown[size:] <= high)).all(), "a mean of what there was"


def test_no_more_words_than_there_is_room_for_and_none_where_all_is_known(parted):
    known, late = parted
    old = drawn(known, 300, 3)
    words = tokenizer.train(old, 4096)
    assert prepare_lines(model_of(words), words, old, 500) == 0
    assert prepare_lines(model_of(words), words, [*old, *drawn(late, 100, 4)], 7) == 7
