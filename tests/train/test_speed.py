"""Without a mask, moved and fused, a model says and learns the same."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from cudal2.train import speed

ROWS, LENGTH = 4, 13


@pytest.fixture
def model():
    torch.manual_seed(0)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, **shape))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and masks, padded on the left, on the right, on both sides and not at all."""
    place = torch.arange(LENGTH)
    first, last = torch.tensor([4, 0, 3, 0])[:, None], torch.tensor([LENGTH, 9, 10, LENGTH])[:, None]
    return torch.randint(1, 40, (ROWS, LENGTH)), ((place >= first) & (place < last)).long()


def learnt(model, ids, mask) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What the model says after each token that is no padding, and the gradients of that."""
    model.zero_grad()
    said = model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)[mask.bool()]
    said[:, 5].sum().backward()
    return said.detach(), [weight.grad.clone() for weight in model.parameters() if weight.requires_grad]


@pytest.mark.parametrize("adapted", [False, True])
def test_rows_padded_on_either_side_need_no_mask(model, adapted, monkeypatch):
    if adapted:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    ids, mask = rows()
    expected = learnt(model, ids, mask)
    masks = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watched(*given, attn_mask=None, **named):
        masks.append(attn_mask)
        return plain(*given, attn_mask=attn_mask, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    with speed.unmasked(model):
        found = learnt(model, ids, mask)
    assert masks == [None] * 3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    again = learnt(model, ids, mask)
    assert masks[-1] is not None
    torch.testing.assert_close(again, expected)


def test_rows_without_padding_and_without_a_mask_stay_as_they_are(model):
    ids, _ = rows()
    expected = model(input_ids=ids).logits
    with speed.unmasked(model):
        torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)


def test_layers_may_be_computed_again_once_the_model_is_as_it_was(model):
    ids, mask = rows()
    _, expected = learnt(model, ids, mask)
    model.gradient_checkpointing_enable()
    model.zero_grad()
    model.train()
    with speed.attention():
        with speed.unmasked(model):
            said = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.log_softmax(-1)[mask.bool()]
        said[:, 5].sum().backward()
    found = [weight.grad for weight in model.parameters()]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_fused_layers_say_and_learn_the_same(model):
    ids, mask = rows()
    expected = learnt(model, ids, mask)
    speed.fuse(model)
    with speed.unmasked(model):
        torch.testing.assert_close(learnt(model, ids, mask), expected, atol=1e-5, rtol=1e-4)
