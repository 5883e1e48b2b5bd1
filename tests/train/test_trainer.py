"""Turns in training: each kernel is judged, earns its return, and nothing but the policy's own words is learnt."""

import os
import random
import subprocess
import sys
from itertools import count, pairwise
from pathlib import Path

import fakes
import pytest
import tiny_chat
import torch
from fakes import FakePool, tiny
from safetensors.torch import load_file
from trl import GRPOTrainer
from trl.distributed import DistributedBackend

from cudal2.archive import Archive
from cudal2.completion import fenced
from cudal2.config import ReturnsConfig, TrainConfig, load
from cudal2.policy import vllm_engine
from cudal2.policy.locate import latest_checkpoint
from cudal2.tracking import read_metrics
from cudal2.train import draws, grpo, options
from cudal2.train.trainer import earn

TURNS = ["policy.chat=true", "turns.count=3", "trainer.group_size=4", "trainer.steps=2"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return fakes.save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def config(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(grpo, "Pool", FakePool)

    def make(*overrides: str, run: str = "run") -> TrainConfig:
        return load("train", [*tiny(tmp_path / run, policy), *TURNS, *overrides], TrainConfig)

    return make


@pytest.fixture
def learnt(monkeypatch):
    """What the trainer was to learn, a batch a step."""
    batches = []
    score = grpo.KernelTrainer._generate_and_score_completions

    def note(self, inputs):
        batches.append(score(self, inputs))
        return batches[-1]

    monkeypatch.setattr(grpo.KernelTrainer, "_generate_and_score_completions", note)
    return batches


def samples(folder) -> list:
    with Archive.of(folder, create=False) as archive:
        return [(sample, archive.source(sample.source_hash)) for sample in archive.samples("train")]


def test_a_return_is_the_discounted_sum_of_what_comes_after_it():
    rng = random.Random(0)
    for _ in range(200):
        rewards = [rng.choice([None, rng.uniform(-1, 2)]) for _ in range(rng.randint(1, 6))]
        discount = rng.random()
        found = earn(rewards, ReturnsConfig(discount=discount))
        for turn in range(len(rewards)):
            if None in rewards[turn:]:
                assert found[turn] is None
            else:
                assert found[turn] == pytest.approx(sum(discount**i * one for i, one in enumerate(rewards[turn:])))
        best = earn(rewards, ReturnsConfig(reward="best"))
        assert best == [None if None in rewards else max(rewards)] * len(rewards)
    assert earn([0.5, -1.0, 2.0], ReturnsConfig(discount=0)) == [0.5, -1.0, 2.0]


def test_each_turn_is_judged_and_learnt_with_its_own_return(config, policy, learnt, tmp_path):
    grpo.run(config("trainer.steps=1"))
    judged = samples(tmp_path / "run")
    assert [(s.origin.step, s.origin.index, s.origin.turn) for s, _ in judged] == [
        (1, index, index % 3) for index in range(2 * 4 * 3)
    ]
    later = [s.origin.prompt for s, _ in judged if s.origin.turn]
    assert all("That kernel" in told or "no kernel in that answer" in told for told in later)
    _, words = grpo.policy.load(config().policy)
    for step, batch in enumerate(learnt, 1):
        own = [one for one in judged if one[0].origin.step == step]
        rewards = [s.origin.reward for s, _ in own]
        returns = [value for i in range(0, 24, 3) for value in earn(rewards[i : i + 3], ReturnsConfig())]
        groups = torch.tensor(returns).view(2, 12)
        wanted = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        assert torch.allclose(batch["advantages"].view(2, 12), wanted, atol=1e-5)
        assert "tool_mask" not in batch
        for (_, source), ids, mask in zip(own, batch["completion_ids"], batch["completion_mask"]):
            said = words.decode(ids[mask.bool()], skip_special_tokens=True)
            assert (said.strip() == source.strip()) if source else "hgemm(){}" not in said
        lengths = batch["prompt_mask"].sum(1).view(8, 3)
        assert (lengths[:, 1:] > lengths[:, :-1]).all(), "each turn is shown one attempt more"
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    for row in rows:
        assert row["samples"] == 24 and sum(row["statuses"].values()) == 24
        earned = [
            [s.origin.reward for s, _ in judged if (s.origin.step, s.origin.turn) == (row["step"], turn)]
            for turn in range(3)
        ]
        assert [turn["reward_mean"] for turn in row["turns"]] == pytest.approx([sum(one) / 8 for one in earned])
        assert [turn["shown_mean"] for turn in row["turns"]] == [0, 1, 2]
        better = [None] + [sum(a < b for a, b in zip(*pair)) / 8 for pair in pairwise(earned)]
        assert [turn["better"] for turn in row["turns"]] == better


@pytest.mark.slow
def test_an_interrupted_step_is_taken_again_from_its_first_turn(config, monkeypatch, tmp_path):
    class Interrupted(FakePool):
        asked = 0

        def evaluate(self, candidates, progress):
            Interrupted.asked += 1
            if Interrupted.asked == 5:  # the second turn of the second step
                raise KeyboardInterrupt
            return super().evaluate(candidates, progress)

    options = ["policy.lora.rank=4", "trainer.iterations=2", "trainer.micro_batch=6"]
    grpo.run(config(*options, run="whole"))
    monkeypatch.setattr(grpo, "Pool", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        grpo.run(config(*options))
    grpo.run(config(*options))
    assert Interrupted.asked == 5 + 3
    whole, run = (samples(tmp_path / name) for name in ("whole", "run"))
    assert [(s.source_hash, s.origin.prompt, s.origin.reward) for s, _ in run] == [
        (s.source_hash, s.origin.prompt, s.origin.reward) for s, _ in whole
    ]
    weights = [load_file(latest_checkpoint(tmp_path / name) / "adapter_model.safetensors") for name in ("whole", "run")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_what_the_harness_failed_on_is_counted_and_not_told_and_not_learnt(
    config, learnt, monkeypatch, tmp_path, capsys, caplog
):
    asked = count()

    class Flaky(FakePool):
        def _one(self, candidate):
            return None if next(asked) % 3 == 0 else super()._one(candidate)

    monkeypatch.setattr(grpo, "Pool", Flaky)
    grpo.run(config("trainer.steps=1", "turns.reward=best"))
    (row,), (batch,) = read_metrics(tmp_path / "run/metrics.jsonl"), learnt
    kept = {sample.origin.index for sample, _ in samples(tmp_path / "run")}
    assert 0 < row["masked"] == 24 - len(kept) < 24
    told = [record for record in caplog.records if record.name.startswith("trl")]
    assert f"no verdict {row['masked']}\n" in capsys.readouterr().out and not told
    assert all(batch["advantages"][index] == 0 for index in set(range(24)) - kept)
    lengths = batch["prompt_mask"].sum(1)
    for index in range(24):
        if index % 3 < 2:
            assert (lengths[index + 1] > lengths[index]) == (index in kept)


@pytest.mark.slow
def test_what_an_engine_sampled_keeps_its_own_likelihoods(config, learnt, monkeypatch, tmp_path):
    """Turn by turn each series asks the engine once more, from its own prompt."""

    class Engine:
        """Where vLLM would be, which is not here."""

        def __init__(self, policy, model, accelerator, **options):
            self.model, self._dist, self.asked = model, DistributedBackend(accelerator), []

        def sync_weights(self):
            pass

        def generate(self, prompts, images, num_generations, profiler):
            assert num_generations == 1
            self.asked += prompts
            words = [[3, 4] * (1 + len(self.asked) % 3) + [1] for _ in prompts]
            return None, words, [[[-float(len(prompt))] for _ in ids] for prompt, ids in zip(prompts, words)], None

    monkeypatch.setattr(vllm_engine, "check", lambda: None)
    monkeypatch.setattr(draws, "Sampler", Engine)
    grpo.run(config("policy.sampler=vllm", "trainer.steps=1"))
    (batch,) = learnt
    for prompt, known, mask in zip(batch["prompt_mask"], batch["sampling_per_token_logps"], batch["completion_mask"]):
        assert (known[mask.bool()] == -prompt.sum()).all()


@pytest.mark.slow
@pytest.mark.parametrize("chat", ["true", "false"])
def test_a_single_turn_is_prompted_as_trl_would(config, monkeypatch, chat):
    seen = []
    tokenize = grpo.KernelTrainer._tokenize_prompts

    def both(self, prompts):
        seen.extend(tokenize(self, prompts)[0])
        assert seen == GRPOTrainer._tokenize_prompts(self, prompts)[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(grpo.KernelTrainer, "_tokenize_prompts", both)
    with pytest.raises(KeyboardInterrupt):
        grpo.run(config("turns.count=1", f"policy.chat={chat}"))
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("mistake", "remedy"),
    [
        ("policy.chat=false", r"policy\.chat=true"),
        ("policy.max_new_tokens=2048", r"policy\.max_new_tokens"),
    ],
)
def test_turns_that_cannot_be_are_refused(config, mistake, remedy, tmp_path):
    with pytest.raises(ValueError, match=remedy):
        grpo.run(config(mistake))
    assert not (tmp_path / "run/config.json").exists()


def test_a_series_of_turns_stays_in_one_process(config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="each series of turns whole"):
        options.trl_options(config())


@pytest.mark.slow
def test_two_processes_write_and_one_judges(config, policy, tmp_path):
    """Every series' turns stay together, wherever they were written."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", fakes.__file__]
    log = tmp_path / "judged"
    done = subprocess.run(
        [*command, log, *tiny(tmp_path / "run", policy), *TURNS, "trainer.micro_batch=6"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr.decode()
    judged = samples(tmp_path / "run")
    assert [(s.origin.step, s.origin.index, s.origin.turn) for s, _ in judged] == [
        (step, index, index % 3) for step in (1, 2) for index in range(24)
    ]
    assert len(log.read_text().split()) == len(set(log.read_text().split())) <= 48
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [[turn["shown_mean"] for turn in row["turns"]] for row in rows] == 2 * [[0, 1, 2]]
    told = {"ok": "kernel is correct", "no_source": "no kernel in that answer", "wrong": "failed: wrong"}
    for (before, _), (after, _) in pairwise(judged):
        if after.origin.turn:
            assert before.problem == after.problem and told[before.status] in after.origin.prompt


BROKEN = '#include <stddef.h>\nextern "C" int hgemm() { return undeclared_{number}; }\n'


@pytest.mark.slow
def test_the_compilers_words_reach_the_policy_and_a_kernel_that_works_is_timed(policy, tmp_path, monkeypatch):
    """With the worker itself: the policy is one that says what it is given to say."""
    right = (Path(__file__).parents[1] / "worker/kernels/openmp.cpp").read_text()
    folder = tiny_chat.save(tmp_path / "policy", [right, BROKEN])
    said, prompted = [BROKEN, right], []

    def generate(self, ids, *_, **__):
        prompted.append(self._tokenizer.batch_decode(ids))
        texts = [fenced(said[len(prompted) - 1].replace("{number}", str(i)), "cpp") for i in range(len(ids))]
        return [[*self._tokenizer(text)["input_ids"], self._tokenizer.eos_token_id] for text in texts], None

    monkeypatch.setattr(grpo.KernelTrainer, "_generate_single_turn", generate)
    options = [
        "policy.chat=true",
        "prompt.template=instruct",
        "shapes.names=[64_64_64]",
        "worker=quick",
        "worker.threads=1",
        "worker.disturbed=1e9",  # the time does not matter
        "turns.count=2",
    ]
    sizes = ["trainer.problems_per_step=1", "trainer.group_size=2", "trainer.steps=1", "policy.max_new_tokens=900"]
    grpo.run(load("train", [f"run={tmp_path / 'run'}", f"policy.path={folder}", *options, *sizes], TrainConfig))
    judged = samples(tmp_path / "run")
    assert [(sample.status, sample.origin.turn) for sample, _ in judged] == 2 * [("compile_error", 0), ("ok", 1)]
    first, second = prompted
    assert not any("undeclared" in prompt for prompt in first)
    for number, prompt in enumerate(second):
        assert f"undeclared_{number}" in prompt.split("The build said")[1] and "failed: compile_error" in prompt
    (row,) = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [turn["ok"] for turn in row["turns"]] == [0, 1] and row["turns"][1]["better"] == 1
