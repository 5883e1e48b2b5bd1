"""A policy loads by folder or name, samples repeatably and as configured, and errors name the remedy."""

import json
import shutil

import msgspec
import pytest
import torch

from cudal2.config import LoraConfig, PolicyConfig, SftConfig
from cudal2.policy import sampling, tokenizer
from cudal2.policy.model import check, create, load, load_to_train

SOURCES = [f"int a{i} = {i};\nint b;\nreturn a{i};\n" for i in range(8)] * 4
PROMPTS = ["<|bos|><|cpu|>", "<|bos|><|cpu|><|tn|><|m=64|><|+8|>"] * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy")
    words = tokenizer.train(SOURCES, 1024)
    torch.manual_seed(0)
    create(SftConfig(run="", hidden=32, layers=1, heads=2), words).save_pretrained(path)
    words.save_pretrained(path)
    return path


def test_sampling_is_decided_by_the_seed_alone(folder):
    config = PolicyConfig(path=str(folder), max_new_tokens=12)
    model, words = load(config)
    model.train()
    state = torch.get_rng_state()
    first = sampling.sample(model, words, PROMPTS, config, seed=1)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    torch.rand(5)
    assert sampling.sample(model, words, PROMPTS, config, seed=1) == first
    assert sampling.sample(model, words, PROMPTS, config, seed=2) != first
    assert len(set(first)) > 60, "the whole distribution is sampled"


def test_temperature_zero_is_greedy_and_padding_changes_nothing(folder):
    config = PolicyConfig(path=str(folder), max_new_tokens=8, temperature=0.0)
    model, words = load(config)
    short, long = PROMPTS[:2]
    together = sampling.sample(model, words, [long, short], config, seed=0)
    alone = [sampling.sample(model, words, [prompt], config, seed=9)[0] for prompt in (long, short)]
    assert together == alone


def test_dtype_is_as_configured_but_what_trains_is_float32(folder):
    """In bfloat16 most steps of a usual learning rate would be lost."""
    config = PolicyConfig(path=str(folder), dtype="bfloat16")
    model, _ = load(config)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    model, _ = load_to_train(config, seed=0)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    model, _ = load_to_train(msgspec.structs.replace(config, lora=LoraConfig(rank=4)), seed=0)
    types = {(weight.requires_grad, weight.dtype) for weight in model.parameters()}
    assert types == {(False, torch.bfloat16), (True, torch.float32)}


ADDED = {
    "repetition_penalty": 1.7, "min_p": 0.3, "typical_p": 0.5, "no_repeat_ngram_size": 2, "temperature": 0.2,
    "top_k": 3, "top_p": 0.1, "min_new_tokens": 7, "max_length": 3, "suppress_tokens": [5], "epsilon_cutoff": 0.1,
    "num_beams": 2,
}  # fmt: skip


def test_nothing_but_the_configuration_decides_how_a_policy_is_sampled(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = PolicyConfig(path=str(tmp_path), max_new_tokens=12)
    expected = sampling.sample(*load(config), PROMPTS, config, seed=1)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ADDED))
    model, words = load(config)
    assert sampling.sample(model, words, PROMPTS, config, seed=1) == expected
    model.save_pretrained(tmp_path / "again")
    assert not set(ADDED) - {"top_k"} & set(json.loads((tmp_path / "again/generation_config.json").read_text()))


def test_every_token_that_ends_a_text_of_the_model_ends_a_completion(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path, also = tmp_path / "generation_config.json", 40
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": also}))
    config = PolicyConfig(path=str(tmp_path), max_new_tokens=40)
    model, words = load(config)
    assert set(model.generation_config.eos_token_id) == {also, words.eos_token_id}
    inputs = words(PROMPTS[:1] * 16, return_tensors="pt")
    torch.manual_seed(0)
    for weight in model.parameters():  # every token about as likely, so that both ends occur
        weight.data.mul_(0.01)
    found = [row.tolist() for row in model.generate(**inputs, max_new_tokens=3000)[:, inputs["input_ids"].shape[1] :]]
    ends = {next(token for token in row if token in (also, words.eos_token_id)) for row in found}
    assert ends == {also, words.eos_token_id}


@pytest.mark.parametrize("path", ["/no/such/folder", "./none", "nonsense", "a/b/c", "~/no-such-model"])
def test_a_path_to_nothing_is_refused_before_any_hub_is_asked(path):
    with pytest.raises(ValueError, match=r"is no folder; name the folder"):
        load(PolicyConfig(path=path))


def test_a_name_in_a_folder_that_is_here_is_no_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="is no folder"):
        load(PolicyConfig(path="runs/typo"))


def test_a_folder_without_a_model_is_refused(tmp_path, folder):
    with pytest.raises(ValueError, match=r"holds no model's config\.json"):
        load(PolicyConfig(path=str(tmp_path)))
    (tmp_path / "config.json").write_text('{"run": "of one that has saved nothing yet"}')
    with pytest.raises(ValueError, match=r"or of a run that has saved one"):
        load(PolicyConfig(path=str(tmp_path)))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"it needs config\.json, model\.safetensors"):
        load(PolicyConfig(path=str(tmp_path)))


def test_a_hub_name_that_cannot_be_had_says_so():
    with pytest.raises(ValueError, match="check the name and the network"):
        load(PolicyConfig(path="no-such-owner/no-such-model"))


def test_chat_needs_a_chat_template(folder):
    config = PolicyConfig(path=str(folder), chat=True)
    with pytest.raises(ValueError, match=r"set policy\.chat=false"):
        sampling.sample(*load(config), [[{"role": "user", "content": "hi"}]], config, seed=0)


def test_a_kernel_lm_is_asked_only_for_targets_it_has_a_word_for():
    _, words = load(PolicyConfig())
    check(words, "cpu")
    with pytest.raises(ValueError, match="cudal2 sft target=sm_90a"):
        check(words, "sm_90a")
