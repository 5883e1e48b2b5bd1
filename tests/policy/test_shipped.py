"""The kernel LMs that ship are small, whole, and write kernels for shapes of any size."""

import random
from functools import cache

import pytest

from cudal2 import completion, corpus
from cudal2.config import PolicyConfig, SearchConfig
from cudal2.corpus import STYLES
from cudal2.files import asset
from cudal2.policy import prompts, sampling, tokenizer
from cudal2.policy.learnt import settled
from cudal2.policy.model import load
from cudal2.problem import Problem
from cudal2.split import draw
from cudal2.target import find, targets

SHIPPED = sorted(path.parent.name for path in asset("data", "policy").glob("*/model.safetensors"))
shipped = cache(lambda target: load(PolicyConfig(), target))
each_target = pytest.mark.parametrize("target", SHIPPED)


@each_target
def test_it_fits_the_repository(target):
    assert sum(path.stat().st_size for path in asset("data", "policy", target).iterdir()) <= 16e6


@each_target
def test_it_reads_every_token_of_its_prompts(target):
    """It was trained on one target; the names of the others are no words to it."""
    _, words = shipped(target)
    elsewhere = {f"<|{name}|>" for name in targets()} - {f"<|{target}|>"}
    assert set(tokenizer.PROMPT_TOKENS) - elsewhere <= set(words.get_vocab())


@pytest.mark.parametrize(("target", "styles", "length"), [("cpu", STYLES, 90), ("sm_90a", ("plain",), 170)])
def test_its_words_still_fit_the_corpus(target, styles, length):
    _, words = shipped(target)
    rng = random.Random(0)
    samples = [corpus.draw(find(target), rng.choice(("nn", "tn")), rng, styles=styles) for _ in range(100)]
    texts = [(corpus.plan(sample) if target != "cpu" else "") + sample.source for sample in samples]
    encoded = tokenizer.encode_source(words, texts)
    assert words.batch_decode(encoded) == texts
    assert sum(map(len, encoded)) / len(encoded) <= length


def written(target: str, problems: list[Problem]) -> list[str]:
    learnt = settled(SearchConfig(run="", target=target), "").prompt
    asked = [prompts.render(learnt, False, problem, find(target)) for problem in problems]
    return [
        completion.extract(text, find(target)) or ""
        for text in sampling.sample(*shipped(target), asked, PolicyConfig(), 0)
    ]


def test_it_writes_whole_kernels_for_shapes_it_never_saw():
    rng = random.Random(1)
    problems = [corpus.draw_problem(rng, rng.choice(("nn", "tn")), held_out=True) for _ in range(24)]
    problems += [Problem(16384, 8, 131072, "nn"), Problem(12288, 1000, 8, "tn", "f16")] * 4
    whole = [text for text in written("cpu", problems) if text and text.rstrip().endswith("}")]
    assert len(whole) >= 0.85 * len(problems)
    assert len(set(whole)) >= 0.8 * len(whole), "samples differ"
    for text in whole:
        completion.check_source(text, find("cpu"))


def test_the_one_for_hopper_writes_renderings_for_any_layer():
    """Layers and any sizes, few rows and many, both layouts and types, with a bias or without."""
    hopper, kinds = find("sm_90a"), (("fp16", "bf16"), ("none", "bias", "bias_gelu"))
    problems = [problem for layout in ("tn", "nn") for problem in draw(8, 11, 1e12, 1, (layout,), *kinds)]
    texts = written("sm_90a", problems)
    assert sum(corpus.keeps_its_plan(text, hopper) for text in texts) >= 0.75 * len(texts)
    assert len(set(texts)) >= len(texts) / 2
    for text in texts:
        completion.check_source(text, hopper)
