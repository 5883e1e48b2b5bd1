"""The tokenizer loses nothing, whatever it is given, and is short on what it was made for."""

import random

import pytest
from transformers import AutoTokenizer

from cudal2 import corpus
from cudal2.config import PromptConfig
from cudal2.policy import prompts, tokenizer
from cudal2.problem import Problem
from cudal2.target import CPU, find


def sources(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [corpus.draw(CPU, rng.choice(("nn", "tn")), rng).source for _ in range(count)]


@pytest.fixture(scope="module")
def words():
    return tokenizer.train(sources(600, seed=0), 4096)


def back(words, ids: list[int]) -> str:
    return words.decode(ids, skip_special_tokens=True)


def test_any_text_comes_back_unchanged(words):
    rng = random.Random(1)
    atoms = [
        *map(chr, range(256)),
        *("\r\n", "\n\n", "\u2028", "\u0085", "é", "漢", "😀", "e\u0301", "\ufeff", "\U000f0001", "Ġ", "Ċ", "▁"),
        *("<|eos|>", "<|bos|>", "<|pad|>", "<|m=8|>", "<0x0A>", "</s>", "<unk>", "    ", "\t\t"),
        *tokenizer.lines_of(sources(1, seed=2)[0]),
    ]
    texts = ["".join(rng.choices(atoms, k=rng.randrange(60))) for _ in range(2000)]
    for text, ids in zip(texts, tokenizer.encode_source(words, texts)):
        assert back(words, ids) == text


def test_random_characters_of_all_planes_come_back_unchanged(words):
    rng = random.Random(3)
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    texts = ["".join(map(chr, rng.choices(points, k=40))) for _ in range(500)]
    assert [back(words, ids) for ids in tokenizer.encode_source(words, texts)] == texts


def test_unseen_kernels_are_short_and_come_back_unchanged(words):
    unseen = sources(300, seed=4)
    encoded = tokenizer.encode_source(words, unseen)
    assert [back(words, ids) for ids in encoded] == unseen
    lengths = sorted(map(len, encoded))
    assert lengths[len(lengths) // 2] <= 90
    assert lengths[-1] <= 300  # a rare line is spelled out


def test_an_edited_kernel_costs_only_its_edit(words):
    text = sources(1, seed=5)[0]
    edited = text.replace("\n", "\n// a remark no family makes: 31.4159\n", 1)
    before, after = tokenizer.encode_source(words, [text, edited])
    assert back(words, after) == edited
    assert len(after) - len(before) < 40


def test_saved_and_loaded_it_is_the_same(words, tmp_path):
    words.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    texts = sources(20, seed=6)
    assert tokenizer.encode_source(loaded, texts) == tokenizer.encode_source(words, texts)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == ("<|bos|>", "<|eos|>", "<|pad|>")
    assert loaded.padding_side == "left"
    assert len(loaded) <= 4096


def test_training_is_deterministic():
    texts = sources(100, seed=7)
    assert tokenizer.train(texts, 2048).get_vocab() == tokenizer.train(texts, 2048).get_vocab()


def test_a_vocabulary_without_room_for_lines_is_refused():
    with pytest.raises(ValueError, match="vocabulary=500 is too small; use at least"):
        tokenizer.train(["x\n"], 500)


def test_words_for_other_types_and_rows_only_where_asked_for() -> None:
    texts = ["int x;\n"] * 10
    plain, further = tokenizer.train(texts, 1024), tokenizer.train(texts, 1024, further=True)
    assert set(tokenizer.FURTHER_TOKENS) <= set(further.get_vocab())
    assert not set(tokenizer.FURTHER_TOKENS) & set(plain.get_vocab())
    stated = "<|bos|><|cpu|><|tn|><|f32|><|bf16|><|bias|><|m=4|><|+1|><|n=8|><|k=8|>"
    assert further.decode(further(stated)["input_ids"]) == stated
    tokenizer.check_prompt(further, stated)
    tokenizer.check_prompt(plain, "<|bos|><|cpu|><|tn|><|f32|><|m=8|><|n=8|><|k=8|>")
    with pytest.raises(ValueError, match=r"no words for <\|\+1\|>, <\|bf16\|>.*corpus.dtypes"):
        tokenizer.check_prompt(plain, stated)


def test_a_policy_that_learnt_what_is_worked_out_is_asked_with_it_and_no_other_is() -> None:
    texts, target = ["int x;\n"] * 10, find("sm_90a")
    plain, worked = tokenizer.train(texts, 1024, True), tokenizer.train(texts, 1024, True, True)
    for problem in (Problem(7, 2048, 1024, "tn", "f32", "bf16", "bias"), Problem(8192, 262208, 128)):
        asked = prompts.render(PromptConfig(template="kernel_lm_worked"), False, problem, target)
        ids = worked(asked)["input_ids"]
        assert len(ids) == asked.count("<|") and worked.decode(ids) == asked  # a token for each fact
        tokenizer.check_prompt(worked, asked)
        with pytest.raises(ValueError, match=r"prompt=kernel_lm$"):
            tokenizer.check_prompt(plain, asked)
    with pytest.raises(ValueError, match="prompt=kernel_lm_worked"):
        tokenizer.check_prompt(worked, prompts.render(PromptConfig(), False, problem, target))


@pytest.mark.parametrize("n", [8, 65536, 131072, 152064, 196600, 196608, 201088, 262144, 262208, 1 << 19])
def test_a_vocabulary_that_has_no_words_is_refused(n: int) -> None:
    words = [f"<|{'+' if place else 'n='}{power}|>" for place, power in enumerate(prompts.powers(n))]
    assert set(words) <= {*tokenizer.PROMPT_TOKENS, *tokenizer.BEYOND}
    further = tokenizer.train(["int x;\n"] * 10, 1024, further=True)
    if n < 196608:
        tokenizer.check_prompt(further, "<|bos|>" + "".join(words))
    else:
        with pytest.raises(ValueError, match="N below 196608"):
            tokenizer.check_prompt(further, "<|bos|>" + "".join(words))
