"""Long completions are those of transformers' own `generate`, whatever the drafts foretell."""

from array import array
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from cudal2.config import PolicyConfig
from cudal2.policy import decoding, sampling
from cudal2.policy.decoding import Drafts, batch, step
from cudal2.train.draws import Draws, used_by

MOST = 21
GREEDY = GenerationConfig(do_sample=False, max_new_tokens=MOST)
LIKELIEST = sampling.choosing(PolicyConfig(temperature=0))
NUMBERS = torch.zeros(5, MOST)


class Told(Drafts):
    """Foretells what it is given, by the tokens that a text begins with."""

    def __init__(self, texts):
        super().__init__()
        self.texts, self.asked = texts, 0

    def guess(self, text, most):
        self.asked += 1
        like = next((one for one in self.texts if one[: len(text)] == text), array("i"))
        return like[len(text) : len(text) + most]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(step, "STRIDE", 8)
    monkeypatch.setattr(batch, "AHEAD", 4)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
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


def test_the_same_tokens_as_generate_whatever_the_padding(model):
    ids, given = prompts()
    expected = model.generate(input_ids=ids, attention_mask=given, generation_config=GREEDY)
    told = []
    written = decoding.complete(model, ids, given, NUMBERS, LIKELIEST, Drafts(), lambda *what: told.append(what))
    assert written.equal(expected) and len(expected.unique()) > 10
    assert model.generate(input_ids=ids, attention_mask=given, generation_config=GREEDY).equal(expected)
    assert sorted(row for row, _ in told) == list(range(5))
    for row, completion in told:
        end = 7 + len(completion)
        assert completion == written[row, 7:end].tolist() and not written[row, end:].any()


def test_drafts_right_and_wrong_change_nothing_but_the_number_of_passes(model, monkeypatch):
    ids, given = prompts()
    numbers = torch.rand(5, MOST, dtype=torch.float64)
    choose = sampling.choosing(PolicyConfig(temperature=1.5))
    passes, run = [], step.Step._run
    monkeypatch.setattr(step.Step, "_run", lambda self: passes.append(1) or run(self))

    def texts(drafts) -> tuple[list[array], int]:
        passes.clear()
        found = {}
        decoding.complete(model, ids, given, numbers, choose, drafts, found.__setitem__)
        return [array("i", found[row]) for row in range(5)], len(passes)

    plain, most = texts(Told([]))
    assert most == max(map(len, plain)) - 1 > 10
    foretold, fewer = texts(Told(plain))
    assert foretold == plain and fewer == -(-most // 4)
    # Right up to the third token, then wrong; and right for a part of the texts only.
    for wrong in ([array("i", [*text[:3], 29, *text[4:]]) for text in plain], plain[:2]):
        again, some = texts(Told(wrong))
        assert again == plain and fewer <= some <= most


def test_what_others_write_is_foretold(model, monkeypatch):
    ids, given = prompts()
    ids, given = ids[:1].repeat(5, 1), given[:1].repeat(5, 1)  # the same prompt five times: the same likeliest text
    drafts = Drafts()
    first = decoding.complete(model, ids, given, NUMBERS, LIKELIEST, drafts)
    passes, run = [], step.Step._run
    monkeypatch.setattr(step.Step, "_run", lambda self: passes.append(1) or run(self))
    again = decoding.complete(model, ids, given, NUMBERS, LIKELIEST, drafts)
    assert again.equal(first) and len(passes) < (first.shape[1] - 7) / 2


def test_a_text_that_has_ended_is_told_while_others_are_written(model):
    ids, given = prompts()
    asked, told = [], []

    def choose(scores, numbers):
        asked.append(len(scores))
        return torch.tensor([5, 5, 5, 5, 2]) if len(asked) == 1 else torch.full((16,), 5 if len(asked) < 5 else 3)

    def finished(row, completion):
        told.append((len(asked), row, completion))

    written = decoding.complete(model, ids, given, NUMBERS, choose, Told([]), finished)[:, 7:]
    # The fifth text ends at once.
    assert told[0] == (1, 4, [2]) and [row for _, row, _ in told] == [4, 0, 1, 2, 3]
    assert written[0].tolist() == [5, 5, 5, 5, 3] and not written[4, 1:].any() and asked == [5, 16, 16, 16, 16]


def test_texts_that_have_ended_leave_the_batch(model, monkeypatch):
    ids, given = prompts()
    rows, run = [], step.Step._run
    monkeypatch.setattr(step.Step, "_run", lambda self: rows.append(len(self._rows)) or run(self))
    lasts = []
    decoding.complete(
        model, ids, given, NUMBERS, LIKELIEST, Told([]), lambda row, completion: lasts.append(len(completion))
    )
    live = [sum(last > done for last in lasts) for done in range(1, max(lasts))]
    assert len(rows) == len(live) and all(here >= needed for here, needed in zip(rows, live))
    assert rows[-1] < 2 * live[-1] < 10


def test_no_text_is_longer_than_asked(model):
    ids, given = prompts()
    never = torch.full((5, 5), 7)
    written = decoding.complete(
        model, ids, given, NUMBERS[:, :5], lambda scores, _: torch.full((len(scores),), 7), Told([array("i", [7] * 9)])
    )
    assert written[:, 7:].equal(never)


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
    assert written.equal(expected)
    torch.manual_seed(1)
    scores = torch.randn(1, 30).repeat(4000, 1)
    drawn = torch.bincount(sampling.choosing(config)(scores, torch.rand(4000)), minlength=30) / 4000
    torch.testing.assert_close(drawn, sampling.warpers(config)(None, scores)[0].softmax(-1), atol=0.04, rtol=0)


def test_on_a_processor_only_a_llama_and_long_completions_are_worth_it(model):
    assert decoding.suits(model, decoding.LONG) and not decoding.suits(model, decoding.LONG - 1)
    model.config.model_type = "qwen2"
    assert not decoding.suits(model, decoding.LONG)


@pytest.mark.parametrize(
    ("width", "heads", "dtype", "suits"),
    [
        (64, 3, torch.float32, True),
        (128, 8, torch.bfloat16, True),
        (128, 8, torch.float32, False),
        (80, 1, torch.bfloat16, False),
        (64, 16, torch.bfloat16, False),
    ],
)
def test_on_a_gpu_its_heads_must_fit(width, heads, dtype, suits):
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": width}
    shape = LlamaConfig(hidden_size=width * heads, **heads_of)
    for kind, expected in (("cuda", suits), ("cpu", True), ("mps", False)):
        model = SimpleNamespace(config=shape, device=torch.device(kind), dtype=dtype)
        assert decoding.suits(model, decoding.LONG) is expected
        assert decoding.suits(model, 1) is (expected and kind == "cuda")


@pytest.mark.gpu
def test_on_a_gpu_its_graphs_give_the_same_tokens(model):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    model.cuda()
    ids, given = (one.cuda() for one in prompts())
    expected = model.generate(input_ids=ids, attention_mask=given, generation_config=GREEDY)
    numbers, drafts = NUMBERS.cuda(), Drafts()
    for cast in (False, True, False):  # as a search samples, and as a trainer does; the last time all is foretold
        with torch.autocast("cuda", torch.bfloat16, enabled=cast):
            written = decoding.complete(model, ids, given, numbers, LIKELIEST, drafts)
        assert (written == expected[:, : written.shape[1]]).float().mean() > (0.7 if cast else 0.99)
