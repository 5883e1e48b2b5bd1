"""Rows that share lines are learnt as rows alone are."""

import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cudal2.train.options import STRIDE
from cudal2.train.sft.kernel_lm import batch, packed

PAD = 0


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=PAD,
    )
    return LlamaForCausalLM(shape).eval()


def rows(seed: int) -> list[dict]:
    rng = random.Random(seed)
    return [
        {
            "input_ids": np.array([rng.randint(1, 49) for _ in range(length)], np.int32),
            "given": rng.randint(1, length - 1),
        }
        for length in rng.sample(range(2, 90), 20)
    ]


def gradients(model: LlamaForCausalLM, batches: list[list[dict]]) -> torch.Tensor:
    """Of the mean over all tokens that count in the batches together."""
    made = [batch(one, PAD) for one in batches]
    count = torch.tensor(sum(int((one["labels"] != -100).sum()) for one in made))
    model.zero_grad()
    for one in made:
        model(**one, num_items_in_batch=count).loss.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_share_lines_are_learnt_as_each_alone(model, seed):
    some = rows(seed)
    assert len(batch(some, PAD)["input_ids"]) < len(some)
    together, alone = gradients(model, [some]), gradients(model, [[one] for one in some])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    assert together.abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_lines_hold_each_row_once_and_are_full(seed):
    rng = random.Random(seed)
    lengths = [rng.choice((60, 70, 75, 250, 300)) for _ in range(256)]
    lines = packed(lengths)
    assert sorted(number for line in lines for number in line) == list(range(256))
    filled = [sum(lengths[number] for number in line) for line in lines]
    assert max(filled) == max(lengths) and sum(filled) > 0.9 * max(lengths) * len(lines)


def test_the_loss_counts_what_no_prompt_gave():
    some = rows(5)
    made = batch(some, PAD)
    learnt = sorted(int(one) for row in some for one in row["input_ids"][row["given"] :])
    assert sorted(made["labels"][made["labels"] != -100].tolist()) == learnt
    assert made["input_ids"].shape[1] % STRIDE == 0
