"""The kernel LM that ships is small, whole, and writes kernels for shapes of any size."""

import random

import pytest

from cudal2 import corpus, source
from cudal2.assets import asset
from cudal2.config import PolicyConfig, PromptConfig
from cudal2.policy import prompts, sampling, tokenizer
from cudal2.policy.model import load
from cudal2.problem import Problem
from cudal2.target import CPU, targets


@pytest.fixture(scope="module")
def shipped():
    return load(PolicyConfig())


def test_it_fits_the_repository():
    assert sum(path.stat().st_size for path in asset("data", "policy", "cpu").iterdir()) <= 30 << 20


def test_it_reads_every_token_of_a_cpu_prompt(shipped):
    """It was trained on the CPU target alone; the names of the others are no words to it."""
    _, words = shipped
    elsewhere = {f"<|{target}|>" for target in targets()} - {"<|cpu|>"}
    assert set(tokenizer.PROMPT_TOKENS) - elsewhere <= set(words.get_vocab())


def test_its_words_still_fit_the_corpus(shipped):
    _, words = shipped
    rng = random.Random(0)
    texts = [corpus.draw(CPU, rng.choice(("nn", "tn")), rng).source for _ in range(100)]
    encoded = tokenizer.encode_source(words, texts)
    assert words.batch_decode(encoded) == texts
    assert sum(map(len, encoded)) / len(encoded) <= 90


def test_it_writes_whole_kernels_for_shapes_it_never_saw(shipped):
    rng = random.Random(1)
    problems = [corpus.draw_problem(rng, rng.choice(("nn", "tn")), held_out=True) for _ in range(24)]
    problems += [Problem(16384, 8, 131072, "nn"), Problem(12288, 1000, 8, "tn", "f16")] * 4
    asked = [prompts.render(PromptConfig(), False, problem, CPU) for problem in problems]
    config = PolicyConfig(max_new_tokens=256)
    written = [source.extract(text, CPU) for text in sampling.sample(*shipped, asked, config, seed=0)]
    whole = [text for text in written if text and text.rstrip().endswith("}")]
    assert len(whole) >= 0.85 * len(problems)
    assert len(set(whole)) >= 0.8 * len(whole), "samples differ"
    for text in whole:
        source.check(text, CPU)
