"""Adapters are merged for sampling, and the weights come back to the bit."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from cudal2.train.sampling.merging import as_merged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_says_what_the_merged_model_says_and_leaves_no_trace(dtype):
    torch.manual_seed(0)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, **shape)).to(dtype)
    adapted = get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    model, ids = adapted.get_base_model(), torch.randint(0, 40, (3, 9))
    before = {name: (one.clone(), one.requires_grad) for name, one in adapted.named_parameters()}
    said = model(input_ids=ids).logits
    with as_merged(model):
        found = model(input_ids=ids).logits
        assert {one.data_ptr() for one in model.parameters()} - {one.data_ptr() for one, _ in before.values()}
    for name, one in adapted.named_parameters():
        assert one.equal(before[name][0]) and one.requires_grad == before[name][1]
    assert model(input_ids=ids).logits.equal(said)
    expected = adapted.merge_and_unload()(input_ids=ids).logits
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, said, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0.02)


def test_after_an_error_and_without_adapters():
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=1))
    with as_merged(plain):
        pass
    adapted = get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    ids = torch.randint(0, 40, (1, 5))
    said = adapted(input_ids=ids).logits
    with pytest.raises(RuntimeError), as_merged(adapted.get_base_model()):
        raise RuntimeError("sampling failed")
    assert adapted(input_ids=ids).logits.equal(said)
