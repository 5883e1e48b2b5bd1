"""A model that chats learns whole kernels from whole answers, and a killed training goes on as if it had not been."""

import json
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import tiny_chat
import torch
from fakes import FakePool, save_policy
from safetensors.torch import load_file

from cudal2 import completion, corpus, judging, split
from cudal2.archive import Archive
from cudal2.config import PolicyConfig, SftConfig, load
from cudal2.policy.model import load as load_policy
from cudal2.problem import Problem
from cudal2.records import digest
from cudal2.target import CPU
from cudal2.tracking import read_metrics
from cudal2.train import callbacks, options
from cudal2.train.sft import run as sft
from cudal2.train.sft import tuning
from cudal2.train.sft.examples import draw, draw_rows, fitting

TINY = ["samples=8", "epochs=1", "batch_size=2", "learning_rate=1e-2", "context=1100", "plan=true", "verify=0"]
CHAT = ["prompt.template=instruct", "policy.chat=true", "policy.max_new_tokens=8"]


@pytest.fixture(scope="module", autouse=True)
def short():
    """The family with the shortest sources alone."""
    with pytest.MonkeyPatch.context() as patch:
        few = tuple(family for family in corpus.families(CPU) if family.name == "loops")
        patch.setattr("cudal2.corpus.drawing.families", lambda target: few)
        yield


@pytest.fixture(scope="module")
def policy(tmp_path_factory, short):
    folder = tmp_path_factory.mktemp("chat")
    examples = draw(load("sft", ["run=x", *TINY, *CHAT], SftConfig), 20)
    return tiny_chat.save(folder, [text for prompt, text in examples] + [examples[0].prompt[0]["content"]] * 9)


@pytest.fixture
def config(tmp_path, policy):
    def make(*overrides: str) -> SftConfig:
        return load("sft", [f"run={tmp_path / 'run'}", f"policy.path={policy}", *TINY, *CHAT, *overrides], SftConfig)

    return make


def test_a_chat_model_learns_answers_and_is_judged_on_shapes_it_never_saw(config, policy, tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "Pool", FakePool)
    monkeypatch.setattr(sft, "check", lambda config, target: None)
    sft.run(config("verify=3"))
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"] and rows[-1]["tokens"] > rows[0]["tokens"] > 0
    assert json.loads((tmp_path / "run/verify.json").read_text())["samples"] == 3
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert all(split.held_out(sample.problem) for sample in archive.samples("sft"))
    _, words = load_policy(PolicyConfig(path=str(tmp_path / "run")))
    assert words.chat_template and not (tmp_path / "run/checkpoints").exists()
    monkeypatch.setattr(tuning, "fit", None)
    sft.run(config("policy.temperature=0.5", "tuning.save_steps=7"))  # is trained already
    with pytest.raises(ValueError, match="epochs"):
        sft.run(config("epochs=2"))


@pytest.mark.slow
def test_a_killed_training_goes_on_and_ends_the_same(config, tmp_path, monkeypatch):
    monkeypatch.setattr(options, "LOG_STEPS", 1)
    few = ["samples=4", "batch_size=1"]
    sft.run(config(f"run={tmp_path / 'whole'}", *few))
    report = callbacks.ReportsLoss.on_log

    def killed(self, args, state, control, logs=None, **rest):
        if state.global_step == 3:
            raise KeyboardInterrupt
        report(self, args, state, control, logs, **rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(callbacks.ReportsLoss, "on_log", killed)
        sft.run(config("tuning.save_steps=1", *few))
    assert not (tmp_path / "run/policy").exists()
    with pytest.raises(ValueError, match=r"has not ended, with another configuration \(learning_rate"):
        sft.run(config("learning_rate=1e-3", *few))
    sft.run(config("tuning.save_steps=1", *few))
    first, second = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "run"))
    assert [(row["step"], row["loss"]) for row in first] == [(row["step"], row["loss"]) for row in second]
    weights = [load_file(tmp_path / name / "policy/model.safetensors") for name in ("whole", "run")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_training_ends_in_time_with_its_learning_rate_brought_down(config, tmp_path, monkeypatch):
    monkeypatch.setattr(options, "LOG_STEPS", 1)
    now = iter(range(0, 10**6, 10))
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    sft.run(config("samples=12", "batch_size=1", "tuning.minutes=0.7", "tuning.save_steps=3"))
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    rates = [row["learning_rate"] for row in rows]
    assert len(rows) == 5 and rates[1:] == sorted(rates[1:], reverse=True) and rates[-1] < 1e-3 < rates[1] < 1e-2


def test_the_time_of_all_starts_counts():
    before, after = tuning.Rate(100, 3, 60.0), tuning.Rate(100, 3, 60.0)
    before.spent = 30.0
    after.__dict__.update(before.__dict__)  # as LambdaLR does with what a checkpoint kept
    assert after(4) == pytest.approx(0.5) and after(1) == pytest.approx(1 / 3) and after(100) == 0


@pytest.mark.slow
def test_only_adapters_are_saved_where_they_alone_train(config, policy, tmp_path):
    before = load_file(policy / "model.safetensors")
    sft.run(config("policy.lora.rank=2", "samples=4", "policy.sampler=vllm"))
    assert not (tmp_path / "run/policy/model.safetensors").exists()
    model, _ = load_policy(PolicyConfig(path=str(tmp_path / "run")))
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any("embed" in name for name in changed)


@pytest.fixture(scope="module")
def rows(policy):
    return draw_rows(load("sft", ["run=x", *TINY, *CHAT], SftConfig), policy)


def test_what_is_learnt_is_the_answer_and_its_end_for_shapes_that_training_may_see(config, policy, rows):
    _, words = load_policy(PolicyConfig(path=str(policy)))
    examples = draw(config(), 8)
    for row, (_, text), learnt in zip(rows, examples, tuning.dataset(rows)["labels"]):
        assert all(label == -100 for label in learnt[: row.given]) and learnt[-1] == words.eos_token_id
        answer = words.decode(learnt[row.given : -1])
        assert answer[0] not in "/`" and completion.extract(answer, CPU) == text and digest(text) == row.digest
        prompt = words.decode(row.ids[: row.given])
        [shape] = re.findall(r"M=(\d+), N=(\d+), K=(\d+)", prompt)
        assert prompt.endswith("<s>assistant\n") and not split.held_out(Problem(*map(int, shape)))


@pytest.mark.parametrize("packing", ["true", "false"])
def test_rows_too_long_are_left_out_and_none_is_cut(config, rows, packing, monkeypatch):
    lengths = sorted(len(row.ids) for row in rows)
    context = lengths[len(lengths) // 2]
    with pytest.raises(ValueError, match=r"tuning\.left_out"):
        fitting(rows, context)
    whole = fitting(rows, context, left_out=0.6)
    assert 0 < len(whole) < len(rows)
    assert pieces(trained_on(config(f"context={context}", f"tuning.packing={packing}"), whole, monkeypatch)) == Counter(
        tuple(row.ids.tolist()) for row in whole
    )


def test_an_update_sees_all_lengths_and_padding_no_mask(config, rows, monkeypatch):
    mixed = tuning.in_order(rows, 4, seed=1)
    lengths = [len(row.ids) for row in mixed]
    assert sorted(map(id, mixed)) == sorted(map(id, rows))
    assert list(map(id, mixed)) != list(map(id, tuning.in_order(rows, 4, seed=2)))
    assert lengths[:4] == sorted(lengths[:4]) and lengths[4:] == sorted(lengths[4:]) and lengths != sorted(lengths)
    masks = []

    def train(trainer, config, checkpoint):
        trainer.model.model.register_forward_pre_hook(
            lambda model, given, named: masks.append(named.get("attention_mask")), with_kwargs=True
        )
        batch = trainer.data_collator([trainer.train_dataset[place] for place in range(2)])
        assert not batch["attention_mask"].all()
        together = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=torch.tensor(1))
        alone = [
            trainer.compute_loss(
                trainer.model, trainer.data_collator([trainer.train_dataset[place]]), num_items_in_batch=torch.tensor(1)
            )
            for place in range(2)
        ]
        torch.testing.assert_close(together, sum(alone))

    monkeypatch.setattr(callbacks, "fit", train)
    pairs = config("tuning.packing=false", "tuning.micro_batch=2")
    tuning.fit(*tuning.load(pairs), rows, pairs)
    assert masks == [None] * 3


def test_samples_of_one_row_do_not_see_each_other(config, rows, monkeypatch):
    trainer = trained_on(config(f"context={2 * max(len(row.ids) for row in rows)}"), rows, monkeypatch)
    pack = next(pack for pack in trainer.train_dataset if len(pack["seq_lengths"]) > 1)
    batch = trainer.data_collator([pack])
    with torch.no_grad():
        together = trainer.model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits[0]
        start = 0
        for length in pack["seq_lengths"]:
            alone = trainer.model(input_ids=batch["input_ids"][:, start : start + length]).logits[0]
            torch.testing.assert_close(together[start : start + length], alone, atol=1e-4, rtol=1e-4)
            start += length


def trained_on(config, rows, monkeypatch):
    """The trainer that would learn these rows."""
    used = []
    monkeypatch.setattr(callbacks, "fit", lambda trainer, config, checkpoint: used.append(trainer))
    tuning.fit(*tuning.load(config), rows, config)
    return used[0]


def pieces(trainer) -> Counter:
    """The samples that lie in the rows of the trainer, one after the other."""
    found: Counter = Counter()
    for row in trainer.train_dataset:
        start = 0
        for length in row.get("seq_lengths", [len(row["input_ids"])]):
            found[tuple(row["input_ids"][start : start + length])] += 1
            start += length
    return found


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("context=8192", "4096 tokens that"),
        ("start=data/policy/cpu", "give one of them"),
        ("policy.path=''", "examples=text"),
        ("tuning.micro_batch=3", "no multiple"),
        ("policy.path=./none", "is no folder"),
    ],
)
def test_mistakes_are_named_before_anything_is_drawn(config, override, named, monkeypatch):
    monkeypatch.setattr(sft, "_rows", None)
    with pytest.raises(ValueError, match=named):
        sft.run(config("examples=text", override))


def test_a_tokenizer_that_loses_blanks_is_refused(config, tmp_path):
    lossy = save_policy(tmp_path / "lossy")
    with pytest.raises(ValueError, match="cannot write sources"):
        sft.run(config(f"policy.path={lossy}", "context=512"))
