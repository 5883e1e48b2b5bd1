"""Adapters are drawn from the seed alone, go on where a run left them, and are merged for sampling."""

import json
from contextlib import contextmanager

import pytest
import torch
from fakes import save_policy
from peft import LoraConfig as PeftLora
from peft import get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from cudal2.config import LoraConfig, PolicyConfig, SftConfig
from cudal2.policy import sampling, tokenizer
from cudal2.policy.adapters import as_merged, merged_weights
from cudal2.policy.model import create, load, load_to_train

LORA = LoraConfig(rank=4, alpha=8)
IDS = torch.arange(10)[None]


@pytest.fixture
def base(tmp_path):
    return save_policy(tmp_path / "base")


@pytest.fixture
def trained(tmp_path, base):
    """Adapters as a run's checkpoint keeps them, and what the model says with them."""
    model, _ = load_to_train(PolicyConfig(path=str(base), lora=LORA), seed=0)
    torch.manual_seed(1)
    for weight in adapters(model).values():
        weight.data.normal_(0, 0.2)
    model.save_pretrained(tmp_path / "checkpoint-7")
    return tmp_path / "checkpoint-7", logits(model)


def adapters(model) -> dict:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def test_new_adapters_are_all_that_trains_and_the_seed_alone_decides_them(base):
    config = PolicyConfig(path=str(base), lora=LORA)
    first, again, other = (adapters(load_to_train(config, seed)[0]) for seed in (3, 3, 4))
    assert first and all("lora_" in name for name in first)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("sharded, kept", [(False, torch.float32), (True, torch.bfloat16)])
def test_adapters_are_float32_but_where_weights_of_one_type_are_gathered(base, monkeypatch, sharded, kept):
    monkeypatch.setattr("cudal2.policy.adapters.is_deepspeed_zero3_enabled", lambda: sharded)
    model, _ = load_to_train(PolicyConfig(path=str(base), lora=LORA, dtype="bfloat16"), seed=0)
    assert {weight.dtype for weight in adapters(model).values()} == {kept}


def test_a_folder_of_adapters_is_sampled_merged(trained, base):
    folder, expected = trained
    model, words = load(PolicyConfig(path=str(folder), lora=LORA))
    assert not any("lora" in name for name, _ in model.named_parameters())
    torch.testing.assert_close(logits(model), expected)
    assert (logits(load(PolicyConfig(path=str(base)))[0]) - expected).abs().max() > 0.01
    config = PolicyConfig(path=str(folder), max_new_tokens=4)
    assert len(sampling.sample(model, words, ["int M"], config, seed=0)) == 1
    model.save_pretrained(folder.parent / "merged")  # what vLLM is given
    words.save_pretrained(folder.parent / "merged")
    torch.testing.assert_close(logits(load(PolicyConfig(path=str(folder.parent / "merged")))[0]), expected)


def test_adapters_go_on_as_they_are(trained, base):
    folder, expected = trained
    model, _ = load_to_train(PolicyConfig(path=str(folder), lora=LORA, dtype="bfloat16"), seed=0, reference=True)
    assert {weight.dtype for weight in adapters(model).values()} == {torch.float32}
    model, _ = load_to_train(PolicyConfig(path=str(folder), lora=LORA), seed=0)
    assert adapters(model) and all("lora_" in name for name in adapters(model))
    torch.testing.assert_close(logits(model), expected)
    model.save_pretrained(folder.parent / "next")
    torch.testing.assert_close(logits(load(PolicyConfig(path=str(folder.parent / "next")))[0]), expected)
    for lora in (LoraConfig(rank=8, alpha=8), LoraConfig(rank=4, alpha=16)):
        with pytest.raises(ValueError, match=r"set policy\.lora\.rank=4 policy\.lora\.alpha=8"):
            load_to_train(PolicyConfig(path=str(folder), lora=lora), seed=0)


def test_adapters_that_are_more_than_a_product_are_sampled_and_not_trained_on(tmp_path, base):
    plain = load(PolicyConfig(path=str(base)))[0]
    wrapped = get_peft_model(plain, PeftLora(r=4, lora_alpha=8, target_modules="all-linear", use_dora=True))
    wrapped.save_pretrained(tmp_path / "other")
    config = PolicyConfig(path=str(tmp_path / "other"), lora=LORA)
    torch.testing.assert_close(logits(load(config)[0]), logits(wrapped))
    with pytest.raises(ValueError, match=r"use_dora.* policy\.lora\.rank=0"):
        load_to_train(config, seed=0)


def test_every_weight_may_train_on_from_adapters_but_not_near_them(trained):
    """The reference would be their base: the trainer loads it by the model's name."""
    folder, expected = trained
    model, _ = load_to_train(PolicyConfig(path=str(folder)), seed=0)
    assert all(weight.requires_grad for weight in model.parameters())
    torch.testing.assert_close(logits(model), expected)
    with pytest.raises(ValueError, match=r"trainer\.beta=0"):
        load_to_train(PolicyConfig(path=str(folder)), seed=0, reference=True)


def test_adapters_name_their_base_from_the_root(tmp_path, base, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, _ = load_to_train(PolicyConfig(path="base", lora=LORA), seed=0)
    model.save_pretrained(tmp_path / "adapters")
    monkeypatch.chdir("/")
    load(PolicyConfig(path=str(tmp_path / "adapters")))


@pytest.mark.parametrize("named", ["elsewhere/on/disk", "/no/such/folder", "", None, "itself"])
def test_a_base_that_is_not_there_is_named_with_the_remedy(trained, named):
    folder, _ = trained
    path = folder / "adapter_config.json"
    named = str(folder) if named == "itself" else named
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": named}))
    with pytest.raises(ValueError, match=r"adapter_config\.json as base_model_name_or_path"):
        load(PolicyConfig(path=str(folder)))


def test_adapters_of_another_model_are_refused(trained, tmp_path):
    folder, _ = trained
    words = tokenizer.train(["int x;\n"] * 10, 1024)
    create(SftConfig(run="", hidden=64, layers=1, heads=2), words).save_pretrained(tmp_path / "other")
    words.save_pretrained(tmp_path / "other")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(tmp_path / "other")}))
    for read in (load, lambda config: load_to_train(config, seed=0)):
        with pytest.raises(ValueError, match=r"do not fit .*other"):
            read(PolicyConfig(path=str(folder), lora=LORA))


@pytest.mark.parametrize("damage", ["{", '{"peft_type": "IA3"}', "{}"])
def test_adapters_that_cannot_be_read_are_named(trained, damage):
    folder, _ = trained
    (folder / "adapter_config.json").write_text(damage)
    with pytest.raises(ValueError, match="checkpoint-7"):
        load(PolicyConfig(path=str(folder)))
    (folder / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"adapter_config\.json; name the folder"):
        load(PolicyConfig(path=str(folder)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_says_what_the_merged_model_says_and_leaves_no_trace(dtype):
    torch.manual_seed(0)
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, **shape)).to(dtype)
    adapted = get_peft_model(plain, PeftLora(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
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
    adapted = get_peft_model(plain, PeftLora(r=4, target_modules="all-linear", init_lora_weights=False)).eval()
    ids = torch.randint(0, 40, (1, 5))
    said = adapted(input_ids=ids).logits
    with pytest.raises(RuntimeError), as_merged(adapted.get_base_model()):
        raise RuntimeError("sampling failed")
    assert adapted(input_ids=ids).logits.equal(said)


@pytest.fixture
def wrapped(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(save_policy(tmp_path), dtype=torch.bfloat16)
    model = get_peft_model(model, PeftLora(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def test_weights_are_merged_one_at_a_time_and_left_as_they_were(wrapped):
    whole: list[int] = []

    @contextmanager
    def gather(parameters):
        whole.append(sum(parameter.numel() for parameter in parameters))
        yield

    before = {name: parameter.clone() for name, parameter in wrapped.named_parameters()}
    merged = {name: value.clone() for name, value in merged_weights(wrapped, gather)}
    assert all(torch.equal(before[name], parameter) for name, parameter in wrapped.named_parameters())
    plain = dict(wrapped.merge_and_unload().named_parameters())
    assert merged.keys() == plain.keys()
    assert all(torch.equal(merged[name], plain[name]) for name in plain)
    assert not any(value.requires_grad for value in merged.values())
    assert max(whole) < sum(parameter.numel() for parameter in plain.values()) / 5
