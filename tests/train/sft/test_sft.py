"""Supervised training end to end on a tiny model, and what it may never do: show a held-out shape."""

import json
import random

import numpy as np
import pytest
import torch
from fakes import FakePool
from transformers import AutoConfig, AutoTokenizer, TrainingArguments

from cudal2 import corpus, judging, split
from cudal2.archive import Archive
from cudal2.config import PolicyConfig, SftConfig, TrainConfig, load
from cudal2.policy import tokenizer
from cudal2.policy.learnt import stated
from cudal2.policy.model import load as load_policy
from cudal2.records import HarnessFault
from cudal2.target import CPU, find
from cudal2.tracking import read_metrics
from cudal2.train.folder import only_trainer_of, record
from cudal2.train.sft import kernel_lm, verification
from cudal2.train.sft import run as sft
from cudal2.train.sft.examples import Row, draw, encode, fitting

TINY = ["samples=200", "epochs=1", "batch_size=8", "hidden=32", "layers=1", "heads=2", "verify=6"]


def config(folder, *overrides: str) -> SftConfig:
    return load("sft", [f"run={folder}", *TINY, *overrides], SftConfig)


def test_a_run_trains_saves_and_judges(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "Pool", FakePool)
    monkeypatch.setattr(sft, "check", lambda config, target: None)
    few = tuple(family for family in corpus.families(CPU) if family.name == "loops")
    for module in ("corpus", "corpus.drawing"):  # all of them take a minute to render
        monkeypatch.setattr(f"cudal2.{module}.families", lambda target: few)
    sft.run(config(tmp_path, "learning_rate=1e-2"))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"]
    report = json.loads((tmp_path / "verify.json").read_text())
    assert report["samples"] == report["judged"] == 6 == sum(report["statuses"].values())
    assert 0 <= report["in_training_set"] <= report["in_families"] <= 1
    with Archive(tmp_path / "archive.sqlite") as archive:
        samples = list(archive.samples("sft"))
    assert len(samples) == 6 and all(split.held_out(sample.problem) for sample in samples)
    assert (tmp_path / "policy/model.safetensors").stat().st_size < 1 << 20


def test_a_machine_that_cannot_judge_is_named_before_training(tmp_path, monkeypatch):
    def check(config, target):
        raise HarnessFault("no GPU answers", "Get one")

    monkeypatch.setattr(sft, "check", check)
    with pytest.raises(HarnessFault, match="verify=0"):
        sft.run(config(tmp_path / "run", "target=sm_90a"))
    assert not (tmp_path / "run").exists()


def test_a_mistyped_start_is_named_by_its_own_key(tmp_path):
    with pytest.raises(ValueError, match=r"^start='runs/typo/policy' is no folder"):
        sft.run(config(tmp_path, "verify=0", "start=runs/typo/policy"))


def test_cuda_kernels_are_learnt_without_a_gpu(tmp_path):
    sft.run(config(tmp_path, "target=sm_90a", "verify=0", "context=4096", "epochs=0.1"))
    _, words = load_policy(PolicyConfig(path=str(tmp_path / "policy")))
    text = corpus.draw(find("sm_90a"), "tn", random.Random(0)).source
    assert words.batch_decode(tokenizer.encode_source(words, [text])) == [text]
    assert not (tmp_path / "verify.json").exists()


FEW = ["verify=0", "samples=100", "epochs=0.1"]


def test_only_a_complete_policy_counts_as_trained_and_only_for_its_configuration(tmp_path, monkeypatch):
    sft.run(config(tmp_path, *FEW))
    weights = tmp_path / "policy/model.safetensors"
    before, metrics = weights.read_bytes(), (tmp_path / "metrics.jsonl").read_text()
    monkeypatch.setattr(kernel_lm, "fit", None)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"policy was trained with another configuration \(seed=0 became 1\)"):
            sft.run(config(tmp_path, *FEW, "seed=1"))
    assert weights.read_bytes() == before and (tmp_path / "metrics.jsonl").read_text() == metrics
    sft.run(config(tmp_path, *FEW, "worker=quick"))  # is trained already
    (tmp_path / "policy" / sft.RECORD).unlink()
    with pytest.raises(ValueError, match="does not say"):
        sft.run(config(tmp_path, *FEW))


def test_a_policy_states_the_temperature_that_it_was_taught_to_state_and_so_does_one_taught_from_it(tmp_path):
    sft.run(config(tmp_path / "one", *FEW, "sampling_temperature=0.5"))
    sft.run(config(tmp_path / "two", *FEW, f"start={tmp_path / 'one'}"))
    assert [stated(str(tmp_path / name / "policy")).temperature for name in ("one", "two")] == [0.5, 0.5]


def test_lines_that_a_policy_has_no_words_for_become_words_when_it_is_taught_again(tmp_path):
    sft.run(config(tmp_path / "one", "verify=0", "samples=20", "epochs=0.1", "context=9000"))
    sft.run(config(tmp_path / "two", *FEW, f"start={tmp_path / 'one'}", "new_lines=30", "seed=1", "context=9000"))
    sizes = [len(AutoTokenizer.from_pretrained(tmp_path / name / "policy")) for name in ("one", "two")]
    assert sizes[0] < sizes[1] <= sizes[0] + 30
    assert AutoConfig.from_pretrained(tmp_path / "two" / "policy").vocab_size == sizes[1]
    with pytest.raises(ValueError, match="name it, start="):
        config(tmp_path / "three", *FEW, "new_lines=30")


@pytest.mark.parametrize(("place", "stage"), [(kernel_lm, "fit"), (sft, "record")])
def test_an_interrupted_run_leaves_nothing_that_looks_trained(tmp_path, monkeypatch, place, stage):
    real = getattr(place, stage)

    def interrupted(*arguments):
        if stage == "fit" or arguments[0].name == sft.RECORD:
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(place, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            sft.run(config(tmp_path, *FEW, "seed=1"))
    assert not (tmp_path / "policy").exists()
    fitted = []
    monkeypatch.setattr(kernel_lm, "fit", lambda *arguments: fitted.append(arguments))
    sft.run(config(tmp_path, *FEW))
    assert fitted and json.loads((tmp_path / "policy" / sft.RECORD).read_text())["seed"] == 0


def test_a_training_run_in_the_folder_is_left_alone(tmp_path):
    record(tmp_path / "config.json", TrainConfig(run=str(tmp_path)))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match="choose another run="):
        sft.run(config(tmp_path, *FEW))
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_only_one_trainer_in_a_folder(tmp_path):
    with only_trainer_of(tmp_path), pytest.raises(ValueError, match="another process"):
        sft.run(config(tmp_path, *FEW))


def test_a_process_that_sees_several_gpus_trains_on_one(tmp_path, monkeypatch):
    used = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(kernel_lm, "TrainingArguments", lambda **kw: TrainingArguments(**{**kw, "use_cpu": False}))
    monkeypatch.setattr(kernel_lm, "Trainer", lambda model, arguments, **_: used.append(arguments) or Stop())
    with pytest.raises(KeyboardInterrupt):
        sft.run(config(tmp_path, *FEW))
    assert (used[0].n_gpu, used[0].train_batch_size) == (1, 8)


class Stop:
    def remove_callback(self, _):
        raise KeyboardInterrupt


def test_families_too_large_to_render_are_not_looked_through():
    target = find("sm_90a")
    text = corpus.draw(target, "tn", random.Random(0)).source
    assert verification._share_of_families([text], False, target) is None


def test_whether_a_source_is_its_plan_is_told_however_many_there_are():
    target, rng = find("sm_90a"), random.Random(0)
    samples = [corpus.draw(target, "tn", rng) for _ in range(4)]
    texts = [corpus.plan(sample) + sample.source for sample in samples]
    texts[1] = texts[1].replace("__global__", "__global__ ")
    texts[2] = texts[2].replace(": ", ": 1", 2)
    texts[3] = samples[3].source
    assert verification._share_of_families(texts, True, target) == 0.25


def test_only_the_source_is_learnt(tmp_path):
    examples = draw(config(tmp_path), 200)
    words = tokenizer.train([source for _, source in examples], 2048)
    for row, (prompt, source) in zip(encode(words, examples, config(tmp_path)), examples):
        batch = kernel_lm.batch([{"input_ids": row.ids, "given": row.given}], words.pad_token_id)
        learnt = [label for label in batch["labels"][0].tolist() if label != -100]
        assert learnt[-1] == words.eos_token_id
        assert words.decode(learnt[:-1]) == source
        assert words.decode(batch["input_ids"][0][: len(row.ids)]) == prompt + source + words.eos_token


def test_a_few_samples_too_long_are_left_out_and_many_are_an_error():
    rows = [Row(np.zeros(length, np.int32), 1, "") for length in (*[20] * 990, *[30] * 10)]
    assert fitting(rows, 30) == rows and fitting(rows, 25) == rows[:990]
    with pytest.raises(ValueError, match="use context=31"):
        fitting([*rows, Row(np.zeros(31, np.int32), 1, "")], 25)
