"""A run that cannot learn says so: on the terminal, in its metrics, in its verdicts and on its page."""

import json
import shutil
from pathlib import Path

import fakes
import pytest
from fakes import FakePool, tiny
from trl.generation.vllm_generation import DistributedBackend

from cudal2 import cli
from cudal2.archive import Archive
from cudal2.config import PolicyConfig, TrainConfig, VllmConfig, load
from cudal2.policy import model, sampling, vllm_engine
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.report import page
from cudal2.tracking import read_metrics
from cudal2.train import draws, grpo, options, summary
from cudal2.train.trainer import KernelTrainer


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return fakes.save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def train(tmp_path, policy, monkeypatch):
    """Trains for two steps, and returns the lines of metrics and the verdicts' reasons."""

    def run(*overrides: str, pool: type = FakePool) -> tuple[list[dict], list[str]]:
        monkeypatch.setattr(grpo, "Pool", pool)
        folder = tmp_path / "run"
        grpo.run(load("train", [*tiny(folder, policy), "trainer.steps=2", *overrides], TrainConfig))
        with Archive(folder / "archive.sqlite") as archive:
            reasons = [archive.verdict(sample.origin).reason for sample in archive.samples("train")]
        return read_metrics(folder / "metrics.jsonl"), reasons

    return run


def test_the_room_to_learn_is_how_far_the_best_of_each_shape_is_above_its_mean():
    candidates = [Candidate("hgemm(){}", Problem(m, 64, 64), "cpu") for m in (64, 128) for _ in range(3)]
    verdicts = [fakes.verdict(candidate) for candidate in candidates]
    row = summary.summarize(1, [*verdicts[:3], None, *verdicts[4:]], [0.0, 1.0, 5.0, None, 4.0, 4.0], candidates)
    assert row["reward_room"] == pytest.approx((3 + 0) / 2)


def page_of(folder: Path) -> str:
    return page.run(folder).read_text()


def test_answers_cut_off_are_told_everywhere(train, tmp_path, capsys):
    rows, reasons = train("policy.max_new_tokens=1")
    said = capsys.readouterr().out
    for row in rows:
        assert row["cut_share"] > 0.5 and f"cut off {row['cut_share']:.0%}" in said
    assert said.count("were cut off at policy.max_new_tokens=1: raise it") == 1, "once a start"
    cut = [reason for reason in reasons if "cut off after 1 tokens (policy.max_new_tokens)" in reason]
    assert len(cut) >= sum(row["cut_share"] * row["samples"] for row in rows) - 4, "all but right kernels"
    assert "In 2 of 2 steps" in page_of(tmp_path / "run") and "policy.max_new_tokens=1" in page_of(tmp_path / "run")


def test_an_answer_that_ends_by_itself_is_not_called_cut_off(train, capsys):
    """Of a policy that says a dozen words, the end among ten, some answers fill their 64 tokens and few."""
    rows, reasons = train("policy.max_new_tokens=64")
    assert all(row["cut_share"] < 0.1 for row in rows) and "!" not in capsys.readouterr().out
    assert sum("cut off" in reason for reason in reasons) <= sum(row["cut_share"] * row["samples"] for row in rows)


def test_equal_rewards_give_no_gradient_and_that_is_said(train, tmp_path, capsys):
    class Indifferent(FakePool):
        def _one(self, candidate):
            return fakes.verdict(type(candidate)("int hgemm(){} fast", candidate.problem), False)

    rows, _ = train(pool=Indifferent)
    assert [(row["groups_equal"], row["grad_norm"]) for row in rows] == [(1.0, 0.0)] * 2
    said = capsys.readouterr().out
    assert said.count("all rewards are equal") == 1 and "no parameter" not in said
    assert "all rewards are equal" in page_of(tmp_path / "run")


def test_that_no_parameter_got_a_gradient_is_said(train, monkeypatch, capsys):
    loss = KernelTrainer._compute_loss
    monkeypatch.setattr(KernelTrainer, "_compute_loss", lambda *given: 0.0 * loss(*given))
    rows, _ = train()
    assert all(row["grad_norm"] == 0 and row["groups_equal"] < 1 for row in rows)
    assert capsys.readouterr().out.count("no parameter got a gradient") == 1


def test_a_mask_that_leaves_out_most_samples_is_told(train, monkeypatch, capsys):
    class Engine:
        """Where vLLM would be: it gives other likelihoods than the trainer."""

        def __init__(self, policy, model, accelerator, **_):
            self.model, self._dist = model, DistributedBackend(accelerator)

        def sync_weights(self):
            pass

        def generate(self, prompts, images, num_generations, profiler):
            words = [[3, 4 + number % 3, 1] for number in range(len(prompts))]
            return prompts, words, [[[-9.0] for _ in ids] for ids in words], None

    monkeypatch.setattr(vllm_engine, "check", lambda: None)
    monkeypatch.setattr(draws, "Sampler", Engine)
    rows, _ = train("policy.sampler=vllm", "policy.vllm.correction=sequence_mask")
    assert all(row["vllm_left_out"] == 1.0 for row in rows)
    assert "left out 100% of the samples" in capsys.readouterr().out


def test_the_correction_suits_the_length_of_the_texts(tmp_path):
    def chosen(tokens: int, correction: str = "auto") -> str:
        policy = PolicyConfig(max_new_tokens=tokens, vllm=VllmConfig(correction=correction))
        return options.trl_options(TrainConfig(run=str(tmp_path), policy=policy)).vllm_importance_sampling_mode

    assert (chosen(512), chosen(513), chosen(7000)) == ("sequence_mask", "token_truncate", "token_truncate")
    assert chosen(7000, "sequence_mask") == "sequence_mask", "what is asked for is done"


@pytest.mark.parametrize(
    "row, kinds",
    [
        ({"cut_share": 0.05, "groups_equal": 0.5, "grad_norm": 0.3}, []),
        ({"cut_share": 0.5, "max_new_tokens": 8}, ["answers cut off"]),
        ({"groups_equal": 1.0, "grad_norm": 0.0}, ["equal rewards"]),
        ({"groups_equal": 1.0, "grad_norm": 0.2}, ["equal rewards"]),
        ({"groups_equal": 0.0, "grad_norm": 0.0}, ["no gradient"]),
        ({"groups_equal": 0.0, "grad_norm": float("nan")}, ["no gradient"]),
        ({"vllm_left_out": 0.9, "grad_norm": 0.1}, ["samples left out"]),
        ({"loss": 0.1}, []),
    ],
)
def test_what_a_line_of_metrics_tells(row, kinds):
    """A line of an earlier version tells nothing."""
    assert list(summary.troubles_of(row)) == kinds
    assert len(summary.troubles_over([row, {}])) == len(kinds)


@pytest.mark.parametrize("chat, tokens, doubted", [(True, 512, True), (True, 4096, False), (False, 512, False)])
def test_a_chat_model_with_the_kernel_lms_length_is_doubted(chat, tokens, doubted):
    config = TrainConfig(run="", policy=PolicyConfig(chat=chat, max_new_tokens=tokens))
    assert bool(grpo.doubts(config)) is doubted
    assert all("policy.max_new_tokens=" in text for text in grpo.doubts(config))


def test_a_tokenizer_without_an_end_is_refused(tmp_path, policy, capsys):
    endless = shutil.copytree(policy, tmp_path / "policy")
    file = endless / "tokenizer_config.json"
    declared = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in declared.items() if key != "eos_token"}))
    with pytest.raises(ValueError, match="no token that ends a text"):
        model.load(PolicyConfig(path=str(endless)))
    assert cli.main(["train", *tiny(tmp_path / "run", endless)]) == 2
    error = capsys.readouterr().err
    assert "eos_token" in error and error.count("\n") == 1


@pytest.mark.parametrize("mistake", ["trainer.micro_batch=-1", "trainer.save_steps=0"])
def test_impossible_numbers_are_one_line(tmp_path, policy, capsys, mistake):
    assert cli.main(["train", *tiny(tmp_path / "run", policy), mistake]) == 2
    error = capsys.readouterr().err
    assert mistake.split("=")[0] in error.replace("$.", "") and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("limit, advised", [(0, True), (30_000, False), (40_000, True), (50_000, True)])
def test_the_advice_is_never_what_is_set_already(limit, advised):
    """Of 40,000 bytes: a limit below them was not reached, because the rest cannot be left out."""
    with pytest.raises(ValueError) as raised:
        sampling.check_room("x" * 40_000, 16_000, 8192, limit)
    assert ("prompt.bytes=10000" in str(raised.value)) is advised
    with pytest.raises(ValueError) as raised:
        sampling.check_room("x" * 900, 100, 64, limit)
    assert "prompt.bytes" not in str(raised.value), "1,000 bytes are more than it has"
