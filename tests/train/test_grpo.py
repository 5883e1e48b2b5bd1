"""GRPO learns, repeats its steps after a kill, and never turns a broken harness into a reward."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
import torch
from fakes import FakePool, WatchedPool, tiny
from safetensors.torch import load_file
from transformers.generation import GenerationMixin
from trl import GRPOConfig

from cudal2.archive import Archive
from cudal2.config import PolicyConfig, SftConfig, TrainConfig, load
from cudal2.policy import decoding, sampling, vllm_engine
from cudal2.policy.locate import latest_checkpoint
from cudal2.policy.model import load as load_policy
from cudal2.policy.prompts import template
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.tracking import read_metrics
from cudal2.train import grpo, judge, options
from cudal2.train.folder import only_trainer_of, record


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return fakes.save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(autouse=True)
def pool(monkeypatch):
    monkeypatch.setattr(grpo, "Pool", FakePool)


def config(folder: Path, policy: Path, *overrides: str) -> TrainConfig:
    return load("train", [*tiny(folder, policy), *overrides], TrainConfig)


def timeless(rows: list[dict]) -> list[dict]:
    return [
        {key: row[key] for key in row if key not in ("seconds", "verdicts_per_minute", "cached_share")} for row in rows
    ]


@pytest.mark.parametrize("shapes", ["llm-apart", "gemma-3-4b.qkv@8,64_64_64", "off-lattice"])
def test_what_is_kept_apart_is_no_shape_to_train_on(tmp_path, policy, shapes):
    with pytest.raises(ValueError, match="training may not see"):
        grpo.run(config(tmp_path / "run", policy, f"shapes={shapes}"))
    assert not (tmp_path / "run").exists()


def test_reward_rises_and_every_sample_is_kept(tmp_path, policy):
    grpo.run(config(tmp_path / "run", policy, "trainer.steps=20"))
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 21))
    rewards = [row["reward_mean"] for row in rows]
    assert sum(rewards[-6:]) > sum(rewards[:6]) + 3
    assert all(sum(row["statuses"].values()) == row["samples"] == 16 for row in rows)
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        samples = list(archive.samples("train", "run"))
    assert [(s.origin.step, s.origin.index) for s in samples] == [(i, j) for i in range(1, 21) for j in range(16)]
    for row in rows:
        earned = [s.origin.reward for s in samples if s.origin.step == row["step"]]
        assert row["reward_mean"] == pytest.approx(sum(earned) / 16)


def test_kernels_are_built_while_others_are_still_being_written(tmp_path, policy, monkeypatch):
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(WatchedPool, "asked", asked)
    one = "trainer.problems_per_step=1", "trainer.group_size=16"  # this policy has one prompt for all problems

    def rows(folder: Path) -> list[dict]:
        grpo.run(config(folder, policy, "trainer.steps=2", *one))
        return timeless(read_metrics(folder / "metrics.jsonl"))

    plain = rows(tmp_path / "plain")
    monkeypatch.setattr(grpo, "Pool", WatchedPool)
    monkeypatch.setattr(decoding, "suits", lambda model, tokens: True)
    for row, expected in zip(rows(tmp_path / "run"), plain, strict=True):
        for key, value in expected.items():
            assert row[key] == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value), key
    steps = "".join(what[0] for what, _ in asked)
    assert steps.startswith("b" * 16 + "j") and steps.count("b") == 32
    built, judged = ({key for what, key in asked if what == wanted} for wanted in ("build", "judge"))
    assert judged == built


@pytest.mark.slow
def test_killed_run_repeats_nothing_and_ends_as_if_never_killed(tmp_path, policy, monkeypatch):
    steps = ["trainer.steps=6", "trainer.save_steps=2"]
    grpo.run(config(tmp_path / "whole", policy, *steps))
    log = tmp_path / "judged"
    command = [sys.executable, fakes.__file__, log, *tiny(tmp_path / "run", policy), *steps]
    killed = subprocess.run(command, env={**os.environ, "KILL_AT": "4"}, capture_output=True, timeout=100)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    before = set(log.read_text().split())

    monkeypatch.setattr(FakePool, "log", log)
    grpo.run(config(tmp_path / "run", policy, *steps))
    judged = log.read_text().split()
    assert before < set(judged) and len(judged) == len(set(judged))
    whole, run = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "run"))
    assert timeless(run) == timeless(whole)
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert len(list(archive.samples("train", "run"))) == 6 * 16


def test_half_written_checkpoint_and_torn_metrics_are_passed_over(tmp_path, policy):
    folder = tmp_path / "run"
    grpo.run(config(folder, policy, "trainer.steps=2", "trainer.save_steps=1"))
    (folder / "checkpoints/checkpoint-2/trainer_state.json").write_text('{"global_st')
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rewa')
    assert latest_checkpoint(folder).name == "checkpoint-1"
    grpo.run(config(folder, policy, "trainer.steps=3"))  # more steps may be asked for
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("iterations", [1, 2])
def test_an_interrupt_saves_the_complete_steps_and_takes_the_other_again(tmp_path, policy, monkeypatch, iterations):
    class Interrupted(FakePool):
        asked = 0

        def evaluate(self, candidates, progress):
            Interrupted.asked += 1
            if Interrupted.asked in (1, 4):
                raise KeyboardInterrupt
            return super().evaluate(candidates, progress)

    options = ["trainer.steps=4", "trainer.save_steps=100", f"trainer.iterations={iterations}"]
    grpo.run(config(tmp_path / "whole", policy, *options))
    monkeypatch.setattr(grpo, "Pool", Interrupted)
    for saved in (None, f"checkpoint-{2 * iterations}"):
        with pytest.raises(KeyboardInterrupt):
            grpo.run(config(tmp_path / "run", policy, *options))
        found = latest_checkpoint(tmp_path / "run")
        assert found is None if saved is None else found.name == saved
    grpo.run(config(tmp_path / "run", policy, *options))
    assert Interrupted.asked == 1 + 3 + 2
    assert as_if_undisturbed(tmp_path)
    assert all(row["tokens_mean"] > 0 for row in read_metrics(tmp_path / "run/metrics.jsonl"))


def as_if_undisturbed(folder: Path) -> bool:
    """Whether the run in `folder/run` reported and learnt what the one in `folder/whole` did."""
    whole, run = (timeless(read_metrics(folder / name / "metrics.jsonl")) for name in ("whole", "run"))
    weights = [load_file(latest_checkpoint(folder / name) / "model.safetensors") for name in ("whole", "run")]
    return run == whole and all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_another_configuration_does_not_continue_a_run(tmp_path, policy):
    folder = tmp_path / "run"
    grpo.run(config(folder, policy, "trainer.steps=1"))
    before = (folder / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match=r"reward\.name=log became paper"):
        grpo.run(config(folder, policy, "trainer.steps=2", "reward=paper"))
    with pytest.raises(ValueError, match="resume=auto"):
        grpo.run(config(folder, policy, "trainer.steps=2", "trainer.resume=never"))
    grpo.run(config(folder, policy, "trainer.steps=1"))  # complete: nothing to do
    assert (folder / "metrics.jsonl").read_text() == before
    assert json.loads((folder / "config.json").read_text())["reward"]["name"] == "log"


@pytest.mark.parametrize(
    "mistake",
    ["policy.path=no/such/folder/here", "prompt.template=none", "trainer.micro_batch=5", "reward.name=best"],
)
def test_a_failed_start_leaves_the_folder_free(tmp_path, policy, mistake):
    folder = tmp_path / "run"
    with pytest.raises(ValueError):
        grpo.run(config(folder, policy, "trainer.steps=1", mistake))
    assert not (folder / "config.json").exists()
    grpo.run(config(folder, policy, "trainer.steps=1"))
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1]


def test_a_start_that_judged_nothing_leaves_the_folder_free(tmp_path, policy, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
        patch.setattr(grpo.KernelTrainer, "_generate_and_score_completions", fail)
        grpo.run(config(folder, policy, "trainer.steps=1", "trainer.group_size=16"))
    grpo.run(config(folder, policy, "trainer.steps=1"))


def fail(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_a_supervised_run_in_the_folder_is_left_alone(tmp_path, policy):
    folder = tmp_path / "run"
    folder.mkdir()
    record(folder / "config.json", SftConfig(run=str(folder)))
    (folder / "metrics.jsonl").write_text('{"step": 10}\n')
    with pytest.raises(ValueError, match="choose another run="):
        grpo.run(config(folder, policy))
    assert (folder / "metrics.jsonl").read_text() == '{"step": 10}\n'


def test_a_resumed_run_saves_as_often_as_it_is_told_now(tmp_path, policy, monkeypatch):
    folder, saved = tmp_path / "run", []
    grpo.run(config(folder, policy, "trainer.steps=3", "trainer.save_steps=3"))
    save = grpo.KernelTrainer._save_checkpoint
    monkeypatch.setattr(
        grpo.KernelTrainer, "_save_checkpoint", lambda self, *a: saved.append(self.state.global_step) or save(self, *a)
    )
    grpo.run(config(folder, policy, "trainer.steps=7", "trainer.save_steps=2"))
    assert saved == [4, 6, 7]


def test_a_process_that_sees_several_gpus_trains_on_one(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(grpo.torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(options, "GRPOConfig", lambda **kw: GRPOConfig(**{**kw, "use_cpu": False}))
    grpo.run(config(tmp_path / "run", policy, "trainer.steps=1"))
    assert [row["samples"] for row in read_metrics(tmp_path / "run/metrics.jsonl")] == [16]


def test_only_one_trainer_in_a_folder(tmp_path, policy):
    folder = tmp_path / "run"
    folder.mkdir()
    with only_trainer_of(folder), pytest.raises(ValueError, match="another process"):
        grpo.run(config(folder, policy))


def test_infrastructure_faults_are_masked_never_rewarded(tmp_path, policy, monkeypatch):
    class Flaky(FakePool):
        def _one(self, candidate):
            return None if len(candidate.source) % 4 == 0 else super()._one(candidate)

    monkeypatch.setattr(grpo, "Pool", Flaky)
    grpo.run(config(tmp_path / "run", policy, "trainer.steps=2"))
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert all(row["masked"] + sum(row["statuses"].values()) == 16 for row in rows)
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        samples = list(archive.samples())
        assert all(len(archive.source(sample.source_hash)) % 4 for sample in samples)
    assert 0 < len(samples) == 32 - sum(row["masked"] for row in rows) < 32


@pytest.mark.parametrize("broken", ["masks", "raises"])
def test_training_stops_when_nothing_can_be_judged(tmp_path, policy, monkeypatch, broken):
    class Broken(FakePool):
        def evaluate(self, candidates, progress):
            if broken == "raises":
                raise HarnessFault("the compiler is gone", "install it")
            return [None] * len(candidates)

    monkeypatch.setattr(grpo, "Pool", Broken)
    with pytest.raises(HarnessFault):
        grpo.run(config(tmp_path / "run", policy, "trainer.steps=2"))
    assert read_metrics(tmp_path / "run/metrics.jsonl") == []


def test_adapters_kl_several_updates_and_micro_batches(tmp_path, policy):
    grpo.run(
        config(
            tmp_path / "run", policy, "policy.lora.rank=4", "trainer.beta=0.1", "trainer.iterations=2",
            "trainer.micro_batch=4", "trainer.steps=3", "trainer.save_steps=2", "reward=milestone",
            "trainer.scale_rewards=batch", "trainer.loss=cispo", "trainer.entropy=0.01", "policy.chat=true",
        )
    )  # fmt: skip
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[-1]["kl"] > 0
    found = {path.name for path in (tmp_path / "run/checkpoints").glob("checkpoint-*")}
    assert found == {"checkpoint-4", "checkpoint-6"}


def test_what_a_run_trained_beside_a_model_is_a_policy(tmp_path, policy):
    """With the reference's adapters in its folder too, and resumed on the way."""
    options = ["policy.lora.rank=4", "trainer.beta=0.1", "trainer.save_steps=1"]
    for steps in (1, 2):
        torch.rand(steps)  # a random state of the caller's own
        grpo.run(config(tmp_path / "run", policy, *options, f"trainer.steps={steps}"))
    torch.rand(5)
    grpo.run(config(tmp_path / "whole", policy, *options, "trainer.steps=2"))
    run, whole = (timeless(read_metrics(tmp_path / name / "metrics.jsonl")) for name in ("run", "whole"))
    assert run == whole
    folder = tmp_path / "run"
    chosen = PolicyConfig(path=str(folder), max_new_tokens=8)
    merged, words = load_policy(chosen)
    before, _ = load_policy(PolicyConfig(path=str(policy)))
    changed = [not torch.equal(a, b) for a, b in zip(merged.parameters(), before.parameters())]
    assert any(changed)
    assert len(sampling.sample(merged, words, ["int M"] * 3, chosen, seed=0)) == 3
    grpo.run(config(tmp_path / "on", folder, *options, "trainer.steps=1"))
    assert read_metrics(tmp_path / "on/metrics.jsonl")[0]["kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_small_step_moves_every_weight_that_trains(tmp_path, policy, dtype):
    options = ["trainer.learning_rate=1e-5", f"policy.dtype={dtype}", "trainer.steps=1", "trainer.group_size=16"]
    grpo.run(config(tmp_path / "run", policy, *options))
    before = load_file(policy / "model.safetensors")
    after = load_file(tmp_path / "run/checkpoints/checkpoint-1/model.safetensors")
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    moved = [(before[name] != after[name]).float().mean(dtype=torch.float64) for name in before]
    assert sum(moved) / len(moved) > 0.95


def test_training_and_evaluation_sample_alike(tmp_path, policy, monkeypatch):
    """Whatever the model's own generation_config adds, and for every token that ends a text."""
    shutil.copytree(policy, tmp_path / "policy")
    added = {"repetition_penalty": 1.7, "min_p": 0.3, "no_repeat_ngram_size": 2, "top_k": 3, "eos_token_id": [7]}
    (tmp_path / "policy/generation_config.json").write_text(json.dumps({"do_sample": True, **added}))
    used = []
    prepare = GenerationMixin._prepare_generation_config

    def record(self, *arguments, **options):
        found = prepare(self, *arguments, **options)
        unlike = ("max_length", "bos_token_id", "disable_compile", "transformers_version")
        used.append({name: value for name, value in found[0].to_dict().items() if name not in unlike})
        return found

    monkeypatch.setattr(GenerationMixin, "_prepare_generation_config", record)
    setup = config(tmp_path / "run", tmp_path / "policy", "trainer.steps=1", "policy.temperature=0.9")
    grpo.run(setup)
    sampling.sample(*load_policy(setup.policy), ["int M"], setup.policy, seed=0)
    training, evaluation = used
    assert training == evaluation
    assert evaluation["eos_token_id"] == [1, 7]
    assert (evaluation["temperature"], evaluation["repetition_penalty"], evaluation["min_p"]) == (0.9, 1.0, None)


def test_exemplars_come_from_the_archive_as_it_grows(tmp_path, policy, monkeypatch):
    shown = []
    render = template.render
    monkeypatch.setattr(template, "render", lambda *a, **k: shown.append(a[4]) or render(*a, **k))
    options = ["trainer.steps=4", "prompt.exemplars=2", "shapes.names=[64_64_64]"]
    grpo.run(config(tmp_path / "run", policy, *options))
    assert len(shown[0]) == 0 and len(shown[-1]) == 2
    assert all(entry.verdict.ok for entry in shown[-1])


def test_unequal_shares_are_refused(tmp_path, policy):
    with pytest.raises(ValueError, match="micro_batch=5"):
        grpo.run(config(tmp_path / "run", policy, "trainer.micro_batch=5"))


@pytest.mark.parametrize("override", ["policy.sampler=vllm", "trainer.deepspeed=zero3.json", "tracker=wandb"])
def test_missing_packages_are_named(tmp_path, policy, override, monkeypatch):
    for package in ("vllm", "deepspeed", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in (options, vllm_engine):
        monkeypatch.setattr(module, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=r"pip install .cudal2\["):
        grpo.run(config(tmp_path / "run", policy, override))


def test_schedule_meets_every_problem_equally_and_can_be_extended():
    problems = [Problem(8 * i, 8, 8) for i in range(1, 6)]
    for seed in range(20):
        count = random.Random(seed).randint(1, 40)
        short, long = (grpo.schedule(problems, n, seed) for n in (count, count + 17))
        assert long[:count] == short
        met = [short.count(problem) for problem in problems]
        assert max(met) - min(met) <= 1 and sum(met) == count


def test_a_prompt_longer_than_the_context_is_named_before_anything_is_sampled(tmp_path, policy):
    short = shutil.copytree(policy, tmp_path / "policy")
    declared = json.loads((short / "config.json").read_text()) | {"max_position_embeddings": 64}
    (short / "config.json").write_text(json.dumps(declared))
    with pytest.raises(ValueError, match=r"64 at once.*prompt\.bytes="):
        grpo.run(config(tmp_path / "run", short, "prompt=instruct", "prompt.exemplars=0"))
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert not list(archive.samples())


def test_a_preview_is_what_the_next_step_sends_and_leaves_no_trace(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(judge, "Pool", FakePool)
    options = ["prompt=islands", "prompt.parent=2", "shapes.names=[64_64_64]", "trainer.problems_per_step=1"]
    start, more = (config(tmp_path / "run", policy, *options, f"trainer.steps={steps}") for steps in (3, 4))
    asked, length = judge.preview(start, Problem(64, 64, 64))
    assert "## Contract" in asked and "Improve" not in asked and "of the 2,048" in length
    assert not (tmp_path / "run").exists()
    grpo.run(start)
    asked, length = judge.preview(more, Problem(64, 64, 64))
    grpo.run(more)
    with Archive(tmp_path / "run/archive.sqlite") as archive:
        assert {sample.origin.prompt for sample in archive.samples() if sample.origin.step == 4} == {asked}
    assert "Improve this one" in asked and length.startswith("step 4: ")
