"""Prompts state the problem exactly, for any shape, and show what was tried before."""

import random
import re

import pytest
from fakes import ENVIRONMENT, verdict

from cudal2.archive import Entry
from cudal2.config import PromptConfig
from cudal2.policy import prompts, tokenizer
from cudal2.problem import Problem
from cudal2.records import Candidate, Status, Verdict
from cudal2.target import CPU

INSTRUCT = PromptConfig(template="instruct", exemplars=2)


def read_back(prompt: str) -> Problem:
    tokens = re.findall(r"<\|(.*?)\|>", prompt)
    assert tokens[:2] == ["bos", "cpu"]
    sizes: list[int] = []
    for token in tokens[4:]:
        if token.startswith("+"):
            sizes[-1] += int(token[1:])
        else:
            assert token[:2] == f"{'mnk'[len(sizes)]}="
            sizes.append(int(token[2:]))
    return Problem(*sizes, tokens[2], tokens[3])


def test_every_shape_is_stated_exactly_in_single_tokens():
    words = tokenizer.train(["int x;\n"] * 10, 1024)
    known = set(words.all_special_ids) | set(words.added_tokens_decoder)
    rng = random.Random(0)
    for _ in range(500):
        sizes = [8 * rng.randint(1, 1 << rng.randint(0, 14)) for _ in range(3)]
        problem = Problem(*sizes, rng.choice(("nn", "tn")), rng.choice(("f32", "f16")))
        prompt = prompts.render(PromptConfig(), False, problem, CPU)
        assert read_back(prompt) == problem
        assert set(words(prompt)["input_ids"]) <= known
        assert words.decode(words(prompt)["input_ids"]) == prompt


def test_instruct_shows_the_fastest_exemplars_and_the_compilers_words():
    problem = Problem(64, 128, 256)
    entries = []
    for number in range(3):
        source = f"int hgemm() {{ return {number}; }}\n"
        entries.append(Entry(source, verdict(Candidate(source, problem))))
    failed = Verdict("", problem, "cpu", Status.COMPILE_ERROR, ENVIRONMENT, log="error: 'oops' {{ 7*7 }}")
    failure = Entry("int hgemm() { oops }\n", failed)
    text = prompts.render(INSTRUCT, False, problem, CPU, entries, failures=[failure])
    assert "M=64, N=128, K=256" in text and CPU.signature in text
    assert entries[0].source in text and entries[1].source in text
    assert entries[2].source not in text, "only two were asked for"
    assert "error: 'oops' {{ 7*7 }}" in text, "what a prompt quotes is not read as a template"
    assert text.count("```cpp") == 4


def test_chat_policies_get_a_message():
    text = prompts.render(INSTRUCT, False, Problem(8, 8, 8), CPU)
    assert prompts.render(INSTRUCT, True, Problem(8, 8, 8), CPU) == [{"role": "user", "content": text}]


def test_an_unknown_template_is_refused_with_the_known_ones():
    for name in ("nonsense", "../pyproject"):
        with pytest.raises(ValueError, match="choose one of instruct, kernel_lm"):
            prompts.render(PromptConfig(template=name), False, Problem(8, 8, 8), CPU)


@pytest.mark.parametrize("size", [8, 384, 1000, 1 << 17])
def test_powers_sum_to_the_size(size):
    powers = prompts.powers(size)
    assert sum(powers) == size and powers == sorted(set(powers), reverse=True)
    assert all(power & (power - 1) == 0 for power in powers)
