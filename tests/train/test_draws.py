"""Tokens are drawn from the distribution that is asked for, by numbers that belong to the sample."""

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, TopKLogitsWarper, TopPLogitsWarper

from cudal2.config import PolicyConfig
from cudal2.policy import decoding
from cudal2.policy.decoding import step
from cudal2.train.draws import Draws, used_by

IDS = torch.zeros(1, 1, dtype=torch.long)


def drawn(draws: Draws, scores: torch.Tensor) -> list[int]:
    chosen = draws(IDS, scores)
    assert (chosen == 0).sum() == len(scores) and chosen.isneginf().sum() == chosen.numel() - len(scores)
    return chosen.argmax(-1).tolist()


@pytest.mark.parametrize("changed", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.7, "temperature": 2.0}])
def test_frequencies_are_those_of_the_distribution(changed):
    config, rows = PolicyConfig(**changed), 5_000
    scores = torch.tensor([[0.3, -1.0, 2.0, -torch.inf, 1.0, 0.0]])
    expected = scores / changed.get("temperature", 1.0)
    for warper in [*([TopKLogitsWarper(config.top_k)] if config.top_k else []), TopPLogitsWarper(config.top_p)]:
        expected = warper(IDS, expected)
    draws = Draws(config)
    draws.begin(1, 0, rows)
    counts = torch.bincount(torch.tensor(drawn(draws, scores.repeat(rows, 1))), minlength=6) / rows
    torch.testing.assert_close(counts, expected.softmax(-1)[0], atol=0.03, rtol=0)
    assert counts[3] == 0


def test_a_sample_draws_alike_whoever_else_is_in_its_batch():
    torch.manual_seed(0)
    scores = [torch.randn(16, 50) for _ in range(5)]
    whole = Draws(PolicyConfig())
    whole.begin(7, 0, 16)
    expected = [drawn(whole, one) for one in scores]
    for size in (8, 4, 1):
        parts = [Draws(PolicyConfig()) for _ in range(16 // size)]
        for place, part in enumerate(parts):
            torch.rand(place)  # other randomness has no part in it
            part.begin(7, place * size, 16)
        for one, tokens in zip(scores, expected):
            found = [token for part, mine in zip(parts, one.split(size)) for token in drawn(part, mine)]
            assert found == tokens
    whole.begin(8, 0, 16)
    assert [drawn(whole, one) for one in scores] != expected


def test_a_model_generates_with_them():
    torch.manual_seed(0)
    tiny = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, bos_token_id=None, eos_token_id=None, pad_token_id=0, **tiny))
    draws, prompt = Draws(PolicyConfig(temperature=0.7)), torch.ones(4, 1, dtype=torch.long)
    used_by(model, draws)

    def texts(rows: slice) -> torch.Tensor:
        draws.begin(3, rows.start, 4)
        return model.generate(prompt[rows], do_sample=True, temperature=0.7, top_k=0, max_new_tokens=6)

    whole = texts(slice(0, 4))
    assert len({tuple(row) for row in whole.tolist()}) > 1
    assert torch.equal(torch.cat([texts(slice(0, 2)), texts(slice(2, 4))]), whole)


@pytest.mark.parametrize(("dtype", "kept"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_long_completions_keep_keys_and_values_in_the_type_that_training_computes_in(monkeypatch, dtype, kept):
    torch.manual_seed(0)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=32, intermediate_size=48, **shape))
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    # As accelerate does: what is cast is the forward alone, and whatever it returns comes back in float32.
    if dtype == "bfloat16":
        model.forward = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model.forward))
    found, made = [], step._Kept.__init__
    monkeypatch.setattr(step._Kept, "__init__", lambda self, *what: made(self, *what) or found.append(self.precision))
    monkeypatch.setattr(decoding, "suits", lambda model, tokens: True)
    draws = Draws(PolicyConfig(dtype=dtype))
    used_by(model, draws)
    draws.begin(0, 0, 2)
    ids = torch.randint(3, 20, (2, 5))
    asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model.generate(**asked, generation_config=GenerationConfig(max_new_tokens=6))
    assert found == [kept]
