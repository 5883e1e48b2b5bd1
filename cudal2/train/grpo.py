"""GRPO (arXiv:2402.03300) with TRL's trainer: the policy writes kernels, the worker judges them.

One *step* samples `problems_per_step` groups of `group_size` completions, judges them all, and updates the
policy `iterations` times. Whatever a step does follows from the seed, its number and the weights before
it, so a killed run that starts again from its last checkpoint asks the worker for the same kernels and finds
them judged. (Prompts with exemplars also depend on the archive, which keeps what the lost steps found.)
A signal interrupts a step in the middle; what was complete before it is saved then, where one process trains.

With several processes (accelerate, DeepSpeed) the main process alone owns the worker, the archive and the
files: every rank sends it candidates and gets verdicts back, so two timings never disturb each other.

With `turns` each completion is the first of a series, see `rollout.py`.
"""

import math
import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from cudal2.archive import Archive
from cudal2.config import TrainConfig
from cudal2.policy import engine, turns
from cudal2.policy import model as policy
from cudal2.policy.checkpoints import latest_checkpoint, step_of
from cudal2.policy.sampling import check_room, choice, context, sent, tokenize
from cudal2.policy.trouble import ADAPTERS, SHARED, TRAINED, told
from cudal2.problem import Problem, parse
from cudal2.target import find
from cudal2.tracking import Metrics, read_metrics
from cudal2.train import artefacts, rollout, sampler
from cudal2.train.callbacks import SavesAsAsked, Terminal, WithoutCard, quiet, taken
from cudal2.train.devices import one_gpu
from cudal2.train.draws import Draws, used_by
from cudal2.train.folder import check, only_trainer_of, record
from cudal2.train.judge import Judge
from cudal2.train.server import ServerGone
from cudal2.train.sharded import check_shares, connect, deepspeed_file
from cudal2.worker.pool import Pool

DRIFT = {
    "sampling_logp_difference/mean": "vllm_logp_difference_mean",
    "sampling_logp_difference/max": "vllm_logp_difference_max",
    "importance_sampling_ratio/min": "vllm_ratio_min",
    "importance_sampling_ratio/mean": "vllm_ratio_mean",
    "importance_sampling_ratio/max": "vllm_ratio_max",
}
"""What TRL logs of how far vLLM's distribution is from the trainer's, and its keys in a run's metrics: the difference
of a token's log-probabilities, and the ratio that weighs a sample for it (`policy.vllm.correction`; 0: it is left out).
"""
LONGEST_STEP = 24 * 3600
"""Seconds that the other processes wait for the main one to judge a step; torch's 1,800 may be too few."""


def run(config: TrainConfig) -> None:
    """Train, or go on training, in the folder `config.run`; see README for what it holds afterwards.

    Raises ValueError where the configuration cannot work or the folder holds a run with another one,
    HarnessFault where nothing can be judged. KeyboardInterrupt ends it at once; the next run goes on from there.
    The folder is this run's once all that a configuration can get wrong has been tried.
    """
    _quiet()
    find(config.target)
    problems = config.shapes.problems()
    arguments = one_gpu(_arguments(config))
    folder = Path(config.run)
    folder.mkdir(parents=True, exist_ok=True)
    state, steps = PartialState(), config.trainer.steps
    with ExitStack() as stack:
        if state.is_main_process:
            stack.enter_context(only_trainer_of(folder))
            check(folder, config)
        state.wait_for_everyone()
        checkpoint = latest_checkpoint(folder)
        check_shares(checkpoint, state.num_processes)
        done = step_of(checkpoint) // config.trainer.iterations
        if done >= steps:
            print(f"{folder} has its {done} steps; a greater trainer.steps goes on from there")
            return
        seconds = taken([row for row in read_metrics(folder / "metrics.jsonl") if row["step"] <= done])
        budget = config.trainer.minutes * 60 or math.inf
        if seconds >= budget:
            print(f"{folder} has had its {config.trainer.minutes:g} minutes; more trainer.minutes go on from there")
            return
        archive = stack.enter_context(Archive(folder / "archive.sqlite"))
        callbacks: list[TrainerCallback] = [SavesAsAsked()]
        if state.is_main_process:
            metrics = Metrics(folder, config.tracker, done, msgspec.to_builtins(config))
            stack.callback(metrics.close)
            terminal = stack.enter_context(Terminal(config.trainer, done, seconds))
            length = f"{config.trainer.minutes:g} minutes" if config.trainer.minutes else f"{steps} steps"
            terminal.say(f"{folder}: {length} over {len(problems)} problems, from step {done}")
            judge = Judge(config, stack.enter_context(Pool(config.worker, config.target)), archive)
            judge.progress = terminal.judged
            callbacks.append(_Report(judge, metrics, terminal, config.trainer.iterations))
        else:
            judge = Judge(config, None, archive)
        ends = time.perf_counter() + budget - seconds
        callbacks.append(_Stop(ends, config.trainer.iterations))
        first = judge.prompt(problems[0], done + 1)
        stack.enter_context(told(TRAINED, ADAPTERS, SHARED))
        if config.trainer.deepspeed:
            connect()
        model, tokenizer = policy.load_to_train(
            config.policy, config.seed, config.target, reference=config.trainer.beta > 0
        )
        policy.check(tokenizer, config.target)
        check_room(first, len(tokenize(tokenizer, first)), context(model.config, config.policy))
        if config.turns.count > 1:
            turns.fitted(tokenizer, first, (), find(config.target), turns.room(model, config.policy))
        names = [problem.name for problem in schedule(problems, steps * config.trainer.problems_per_step, config.seed)]
        trainer = KernelTrainer(
            judge,
            model=model,
            processing_class=tokenizer,
            args=arguments,
            callbacks=callbacks,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(names), "problem": names}),
        )
        trainer.remove_callback(PrinterCallback)
        if state.is_main_process:
            record(folder / "config.json", config)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if state.is_main_process and metrics.wandb:
            artefacts.keep(metrics.wandb, config, problems, archive, judge.environment.fingerprint)


def schedule(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """`count` problems in shuffled passes over the list, so that each is met equally often.

    A longer schedule begins with the shorter one, so that a run can be extended.
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        found += rng.sample(problems, len(problems))
    return found[:count]


class KernelTrainer(WithoutCard, GRPOTrainer):
    """TRL's trainer, with each step's randomness and prompts made from its number when it is sampled."""

    def __init__(self, judge: Judge, **arguments: Any) -> None:
        self.judge, self.seed, self.turns = judge, judge.config.seed, judge.config.turns.count
        if self.turns > 1:
            arguments |= {"reward_funcs": rollout.earned, "rollout_func": lambda prompts, _: self._play(prompts)}
        with sampler.in_place(judge.config.policy):
            super().__init__(**{"reward_funcs": judge} | arguments)
        self._draws = None if self.use_vllm else Draws(judge.config.policy)
        if self._draws:
            used_by(self.accelerator.unwrap_model(self.model), self._draws)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        step = self._sampled_step()
        torch.manual_seed(hash((self.seed, step, self.accelerator.process_index)))
        self.judge.begin()
        self._asked = [row["problem"] for row in inputs]
        written = {name: self._prompt(parse(name), step) for name in {row["problem"] for row in inputs}}
        ids = {name: tokenize(self._tokenizer, prompt) for name, prompt in written.items()}
        self.begin_turn(0, [(ids[name], parse(name)) for name in self._asked])
        try:
            return super()._generate_and_score_completions(
                [{**row, "prompt": written[row["problem"]]} for row in inputs]
            )
        except (KeyboardInterrupt, ServerGone):
            self._save_complete_steps()
            raise

    def begin_turn(self, turn: int, asked: Sequence[tuple[Sequence[int], Problem]]) -> None:
        """Before this process, as every other, writes so many rows: prompts, as ids, and the problems they ask about.

        Says which random numbers the rows are drawn by, and which problem a kernel is for that an engine has written
        while it still writes others.
        """
        rank, ranks, rows = self.accelerator.process_index, self.accelerator.num_processes, len(asked)
        if self._draws:
            self._draws.begin(hash((self.seed, self._sampled_step(), turn)), rank * rows, ranks * rows)
        else:
            engine: Any = self.vllm_generation
            engine.finished = partial(self._finished, {tuple(ids): problem for ids, problem in asked})

    def _finished(
        self, asked: dict[tuple[int, ...], Problem], prompt: Sequence[int], completion: Sequence[int]
    ) -> None:
        """One completion is written, others are not: its kernel begins to be built."""
        if problem := asked.get(tuple(prompt)):
            self.judge.ahead(self._tokenizer.decode(list(completion), skip_special_tokens=True), problem)

    def _sampled_step(self) -> int:
        return self.state.global_step // self.num_iterations + 1

    def _play(self, prompts: list) -> dict[str, Any]:
        """TRL's `rollout_func`: each series of turns has as many rows."""
        problems = [parse(name) for name in self._asked[:: self.turns]]
        return rollout.play(self, self.judge, self._sampled_step(), prompts[:: self.turns], problems)

    def _tokenize_prompts(self, prompts: list) -> tuple[list[list[int]], None, dict[str, Any]]:
        """As an evaluation does it, so that no text that a prompt quotes is a token of the chat template's."""
        return [tokenize(self._tokenizer, prompt) for prompt in prompts], None, {}

    def _prompt(self, problem: Problem, step: int) -> str | list[dict]:
        """As the policy gets it; ValueError where it leaves no room for an answer, before anything is sampled."""
        tokenizer: Any = self.processing_class
        model: Any = self.model
        prompt = sent(tokenizer, self.judge.prompt(problem, step))
        check_room(prompt, len(tokenize(tokenizer, prompt)), context(model.config, self.judge.config.policy))
        return prompt

    def _save_complete_steps(self) -> None:
        """A checkpoint while a step is sampled or judged: all is as the step before left it.

        Only where there is one process: another cannot be asked, it may wait for this one's rewards.
        """
        saved = step_of(latest_checkpoint(Path(self.judge.config.run)))
        if self.accelerator.num_processes == 1 and self.state.global_step > saved:
            self._save_checkpoint(self.model, None)


def _require(package: str, setting: str) -> None:
    if find_spec(package) is None:
        raise ValueError(f'{setting} needs a package: pip install "cudal2[{package}]"')


def _arguments(config: TrainConfig) -> GRPOConfig:
    trainer, sampling = config.trainer, config.policy
    if sampling.sampler == "vllm":
        engine.check()
    if trainer.deepspeed:
        _require("deepspeed", f"trainer.deepspeed={trainer.deepspeed}")
    ranks, vllm = int(os.environ.get("WORLD_SIZE", "1")), sampling.vllm
    if sampling.sampler == "vllm" and vllm.mode == "colocate" and ranks % vllm.tensor_parallel_size:
        raise ValueError(
            f"policy.vllm.tensor_parallel_size={vllm.tensor_parallel_size} does not divide the {ranks} processes of "
            "this start: choose one that does, or start more with accelerate launch --num_processes N"
        )
    count = config.turns.count
    batch = trainer.problems_per_step * trainer.group_size * count
    if trainer.deepspeed and "WORLD_SIZE" not in os.environ:
        raise ValueError(
            f"trainer.deepspeed={trainer.deepspeed} shares the training among processes, which a launcher starts: "
            "torchrun --nproc_per_node N -m cudal2.cli train …, with N=1 for a single one"
        )
    micro = trainer.micro_batch or max(batch // ranks, 1)
    if batch % (ranks * micro) or batch // count % ranks:
        samples = "problems_per_step × group_size" + " × turns.count" * (count > 1)
        raise ValueError(
            f"a step has {samples} = {batch} samples, which {ranks} processes with "
            f"trainer.micro_batch={micro} cannot share equally" + ", each series of turns whole" * (count > 1)
        )
    return GRPOConfig(
        output_dir=str(Path(config.run) / "checkpoints"),
        seed=config.seed,
        max_steps=trainer.steps * trainer.iterations,
        num_generations=trainer.group_size * count,
        num_iterations=trainer.iterations,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // (ranks * micro),
        shuffle_dataset=False,  # the schedule is shuffled already
        learning_rate=trainer.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=trainer.max_grad_norm,
        beta=trainer.beta,
        epsilon=trainer.epsilon,
        loss_type=trainer.loss,
        scale_rewards=trainer.scale_rewards,
        entropy_coef=trainer.entropy,
        gradient_checkpointing=trainer.gradient_checkpointing,
        deepspeed=deepspeed_file(trainer.deepspeed),
        ddp_timeout=LONGEST_STEP,
        bf16=sampling.dtype == "bfloat16",  # what it computes in; the weights it trains are float32
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        **choice(sampling),
        max_completion_length=sampling.max_new_tokens,
        use_vllm=sampling.sampler == "vllm",
        vllm_mode=vllm.mode,
        vllm_server_base_url=vllm.url,
        vllm_server_timeout=vllm.patience,
        vllm_tensor_parallel_size=vllm.tensor_parallel_size,
        vllm_gpu_memory_utilization=vllm.gpu_memory_utilization,
        vllm_max_model_length=vllm.max_model_length or None,
        vllm_enable_sleep_mode=vllm.sleep,
        vllm_importance_sampling_correction=vllm.correction != "none",
        vllm_importance_sampling_mode=vllm.correction,
        vllm_importance_sampling_clip_max=vllm.correction_most,
        save_strategy="steps",
        save_steps=trainer.save_steps * trainer.iterations,
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )


class _Report(TrainerCallback):
    """Completes the judge's row with what the update logged, after the last update of each step."""

    def __init__(self, judge: Judge, metrics: Metrics, terminal: Terminal, iterations: int) -> None:
        self.judge, self.metrics, self.terminal, self.iterations = judge, metrics, terminal, iterations

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs or state.global_step % self.iterations:
            return
        row = self.judge.row
        row["seconds"]["update"] = time.perf_counter() - self.judge.finished
        row["learning_rate"] = logs["learning_rate"]
        names = {"loss": "loss", "grad_norm": "grad_norm", "kl": "kl", "entropy": "entropy"}
        names["completions/mean_length"] = "tokens_mean"
        names |= {f"sampling/{name}": ours for name, ours in DRIFT.items()}
        row |= {name: float(logs[logged]) for logged, name in names.items() if logs.get(logged) is not None}
        self.metrics.log(row, tables={"kernels": self.judge.kernels})
        self.terminal.show(row)


class _Stop(TrainerCallback):
    """Ends training with a checkpoint after the step in which time was up on any process, or the last one.

    `ends` is a time of `time.perf_counter`.
    """

    def __init__(self, ends: float, iterations: int) -> None:
        self.ends, self.iterations = ends, iterations

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.iterations == 0 and (
            any(gather_object([time.perf_counter() >= self.ends])) or state.global_step >= state.max_steps
        ):
            control.should_save = control.should_training_stop = True


def _quiet() -> None:
    """Leaves the terminal to the run's own lines and the cores to the kernels."""
    quiet()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a second thread gains little here and disturbs the kernels being timed
