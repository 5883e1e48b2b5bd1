"""RL with TRL's GRPO trainer: the policy writes kernels, the worker judges them, an algorithm says what that teaches.

One *step* samples `problems_per_step` groups of `group_size` completions, judges them all, and updates the
policy `iterations` times. A step depends only on the seed, its number and the weights before it. So a killed run
that starts again from its last checkpoint writes the same kernels, and their verdicts are known already. (Prompts
with exemplars also depend on the archive, which keeps what the lost steps found.) A signal interrupts a step in the
middle; if only one process trains, the state before this step is saved.

With several processes (accelerate, DeepSpeed) only the main process owns the worker, the archive and the
files: every rank sends it candidates and gets verdicts back, so two timings never disturb each other.

With `turns` each completion is the first of a series, see `trainer.py`.
"""

import gc
import math
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from cudal2 import split
from cudal2.archive import Archive
from cudal2.config import PolicyConfig, TrainConfig
from cudal2.policy import memory, turns
from cudal2.policy import model as policy
from cudal2.policy.learnt import KEY, settled
from cudal2.policy.locate import latest_checkpoint, step_of
from cudal2.policy.sampling import check_room, context, tokenize
from cudal2.problem import Problem
from cudal2.target import find
from cudal2.tracking import Metrics, read_metrics
from cudal2.train.callbacks import SavesAsAsked, Terminal, quiet, taken
from cudal2.train.folder import check, only_trainer_of, record, upload
from cudal2.train.judge import Judge
from cudal2.train.options import check_shares, connect, one_gpu, trl_options
from cudal2.train.trainer import KernelTrainer
from cudal2.worker.pool.pool import Pool

DRIFT = {
    "sampling_logp_difference/mean": "vllm_logp_difference_mean",
    "sampling_logp_difference/max": "vllm_logp_difference_max",
    "importance_sampling_ratio/min": "vllm_ratio_min",
    "importance_sampling_ratio/mean": "vllm_ratio_mean",
    "importance_sampling_ratio/max": "vllm_ratio_max",
}
"""What TRL logs about the difference between vLLM's distribution and the trainer's, by its keys and by those of a run's
metrics: the difference of a token's log-probabilities, and the importance ratio of a sample (`policy.vllm.correction`;
0: masked).
"""


def run(config: TrainConfig) -> None:
    """Train, or continue training, in the folder `config.run`; README lists the files.

    Raises ValueError where the configuration cannot work or the folder holds a run with another one,
    HarnessFault where nothing can be judged. KeyboardInterrupt ends it at once; the next call continues from there.
    Nothing is written to the folder before the configuration was checked as far as possible.
    """
    _quiet()
    find(config.target)
    config = settled(config, config.policy.path)
    problems = config.shapes.problems()
    split.refuse(problems, "training")
    arguments = one_gpu(trl_options(config))
    folder = Path(config.run)
    folder.mkdir(parents=True, exist_ok=True)
    state = PartialState()
    _train(config, folder, problems, arguments, state)
    if state.num_processes > 1 and config.policy.sampler != "vllm":  # vLLM ends the groups that it has made itself
        # What Gloo's threads still hold would be freed after the interpreter's end, which aborts the process; a trainer
        # is part of a circle, and holds the groups as well. Not after an error: others may never come here.
        state.wait_for_everyone()
        gc.collect()
        state.destroy_process_group()


def _train(
    config: TrainConfig, folder: Path, problems: Sequence[Problem], arguments: GRPOConfig, state: PartialState
) -> None:
    steps = config.trainer.steps
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
            for text in doubts(config):
                terminal.say(text)
            callbacks.append(_Report(judge, metrics, terminal, config.trainer.iterations))
        else:
            judge = Judge(config, None, archive)
        ends = time.perf_counter() + budget - seconds
        callbacks.append(_Stop(ends, config.trainer.iterations))
        first = judge.prompt(problems[0], done + 1)
        stack.enter_context(memory.hint(memory.TRAINED, memory.ADAPTERS, memory.SHARED))
        if config.trainer.deepspeed:
            connect()
        model, tokenizer = policy.load_to_train(config.policy, config.seed, config.target, reference=arguments.beta > 0)
        policy.check(tokenizer, config.target)
        tokenizer.init_kwargs[KEY] = config.prompt.template  # every checkpoint states it
        check_room(first, len(tokenize(tokenizer, first)), context(model.config, config.policy), config.prompt.bytes)
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
            upload(metrics.wandb, config, problems, archive, judge.environment.fingerprint)


def doubts(config: TrainConfig) -> list[str]:
    """What of a configuration works and is most likely not meant."""
    policy = config.policy
    if policy.chat and policy.max_new_tokens <= PolicyConfig().max_new_tokens:
        return [
            f"policy.max_new_tokens={policy.max_new_tokens} is for the kernel LM, whose tokens are whole lines: a chat "
            "model takes 1,000 to 4,000 tokens for a kernel; say policy.max_new_tokens=4096"
        ]
    return []


def schedule(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """`count` problems in shuffled passes over the list, so that each occurs equally often.

    A longer schedule begins with a shorter one, so that a run can be extended.
    """
    rng = random.Random(seed)
    order: list[Problem] = []
    while len(order) < count:
        order += rng.sample(problems, len(problems))
    return order[:count]


class _Report(TrainerCallback):
    """Completes the judge's line of metrics with what its updates logged, after the last update of each step.

    What is about the samples TRL logs with the first update only; of what it logs with each, the last one counts.
    """

    def __init__(self, judge: Judge, metrics: Metrics, terminal: Terminal, iterations: int) -> None:
        self.judge, self.metrics, self.terminal, self.iterations = judge, metrics, terminal, iterations
        self.logged: dict[str, Any] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        self.logged |= logs
        if state.global_step % self.iterations:
            return
        logs, self.logged = self.logged, {}
        row = self.judge.row
        row["seconds"]["update"] = time.perf_counter() - self.judge.finished
        row["learning_rate"] = logs["learning_rate"]
        names = {"loss": "loss", "grad_norm": "grad_norm", "kl": "kl", "entropy": "entropy"}
        names |= {"completions/mean_length": "tokens_mean", "frac_reward_zero_std": "groups_equal"}
        names |= {f"sampling/{name}": ours for name, ours in DRIFT.items()}
        row |= {name: float(logs[logged]) for logged, name in names.items() if logs.get(logged) is not None}
        self.metrics.log(row, tables={"kernels": self.judge.kernels})
        self.terminal.show(row)


class _Stop(TrainerCallback):
    """Ends training, with a checkpoint, after the last step, or after the step in which any process passed the time
    `ends` (of `time.perf_counter`).
    """

    def __init__(self, ends: float, iterations: int) -> None:
        self.ends, self.iterations = ends, iterations

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.iterations == 0 and (
            any(gather_object([time.perf_counter() >= self.ends])) or state.global_step >= state.max_steps
        ):
            control.should_save = control.should_training_stop = True


def _quiet() -> None:
    """Silences libraries, and leaves the cores to the kernels."""
    quiet()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # a second thread gains little here and disturbs the kernels being timed
