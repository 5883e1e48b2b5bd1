"""Long completions are those of transformers' own `generate`, whose cache and kernels are slower."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from cudal2.config import PolicyConfig
from cudal2.policy import decoding, sampling
from cudal2.train.sampling.draws import Draws, used_by

MOST = 21
GREEDY = GenerationConfig(do_sample=False, max_new_tokens=MOST)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(decoding, "STRIDE", 8)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=30, hidden_size=48, intermediate_size=32, num_hidden_layers=2, **heads)
    ).eval()
    model.generation_config = GenerationConfig(eos_token_id=[2, 3], pad_token_id=0)
    for weight in model.parameters():
        weight.data.mul_(3)  # so that the likeliest tokens differ
    return model


def prompts(rows: int = 5, length: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and masks; the first rows are padded."""
    given = torch.arange(length) >= (torch.arange(rows)[:, None] * 2 % length)
    return torch.randint(4, 30, (rows, length)) * given, given.long()


def likeliest(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores.argmax(-1)


def test_the_same_tokens_as_generate_whatever_the_padding(model):
    ids, given = prompts()
    expected = model.generate(input_ids=ids, attention_mask=given, generation_config=GREEDY)
    told = []
    written = decoding.complete(model, ids, given, MOST, likeliest, lambda *what: told.append(what))
    both = expected.shape[1]
    assert written[:, :both].equal(expected) and not written[:, both:].any() and len(expected.unique()) > 10
    assert model.generate(input_ids=ids, attention_mask=given, generation_config=GREEDY).equal(expected)
    assert sorted(row for row, _ in told) == list(range(5))
    for row, completion in told:
        end = 7 + len(completion)
        assert completion == written[row, 7:end].tolist() and not written[row, end:].any()


def test_it_ends_when_every_text_has_ended(model, monkeypatch):
    monkeypatch.setattr(decoding, "LOOK", 4)
    ids, given = prompts()
    asked = []

    def draw(ids, scores):
        asked.append(ids.shape[1])
        return torch.full((5,), 3) if len(asked) > 4 else torch.tensor([5, 5, 5, 5, 2])

    def finished(row, completion):
        told.append((len(asked), row, completion))

    told = []
    written = decoding.complete(model, ids, given, MOST, draw, finished)[:, 7:]
    # The fifth text ends at once, and that is told before the others have ended.
    assert told[0] == (4, 4, [2]) and [row for _, row, _ in told] == [4, 0, 1, 2, 3] and told[1][2] == [5, 5, 5, 5, 3]
    assert len(asked) == 8 and written[0].tolist() == [5, 5, 5, 5, 3, 0, 0, 0] and not written[4, 1:].any()


def test_texts_that_have_ended_leave_the_batch(model, monkeypatch):
    ids, given = prompts()
    rows, run = [], decoding._Step._run
    monkeypatch.setattr(decoding._Step, "_run", lambda self: rows.append(len(self._rows)) or run(self))
    lasts = []
    decoding.complete(model, ids, given, MOST, likeliest, lambda row, completion: lasts.append(6 + len(completion)))
    # Every eighth place is looked at; the prompt has seven.
    left = [5 if place == 7 else sum(last >= place // 8 * 8 for last in lasts) for place in range(7, 7 + MOST - 1)]
    assert rows == left and len(set(left)) > 2


def test_samples_and_training_use_it_for_long_completions(model, monkeypatch):
    ids, given = prompts()
    config = PolicyConfig(temperature=0.7, top_k=5)
    draws = Draws(config)
    used_by(model, draws)
    asked = {"input_ids": ids, "attention_mask": given, "generation_config": GenerationConfig(max_new_tokens=MOST)}

    def texts() -> torch.Tensor:
        draws.begin(3, 0, 5)
        return model.generate(**asked, do_sample=True, temperature=0.7, top_k=0)

    expected, told = texts(), []
    monkeypatch.setattr(decoding, "suits", lambda model, tokens: tokens == MOST)
    draws.finished = lambda prompt, completion: told.append(prompt)
    written = texts()
    assert sorted(told) == sorted(row[mask.bool()].tolist() for row, mask in zip(ids, given))
    assert written[:, : expected.shape[1]].equal(expected)
    torch.manual_seed(1)
    scores = torch.randn(1, 30).repeat(4000, 1)
    drawn = torch.bincount(sampling._draw(config)(ids, scores), minlength=30) / 4000
    torch.testing.assert_close(drawn, sampling.warpers(config)(ids, scores)[0].softmax(-1), atol=0.04, rtol=0)


def test_only_a_llama_on_a_gpu_and_long_completions_are_worth_it(model):
    assert not decoding.suits(model, decoding.LONG)


@pytest.mark.gpu
def test_on_a_gpu_its_graphs_give_the_same_tokens(model):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    model.cuda()
    ids, given = (one.cuda() for one in prompts())
    expected = model.generate(input_ids=ids, attention_mask=given, generation_config=GREEDY)
    for cast in (False, True):  # as a search samples, and as a trainer does
        with torch.autocast("cuda", torch.bfloat16, enabled=cast):
            written = decoding.complete(model, ids, given, MOST, likeliest)[:, : expected.shape[1]]
        assert (written == expected).float().mean() > (0.7 if cast else 0.99)
