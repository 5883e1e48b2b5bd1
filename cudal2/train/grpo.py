"""GRPO (arXiv:2402.03300) with TRL's trainer: the policy writes kernels, the worker judges them.

One *step* samples `problems_per_step` groups of `group_size` completions, judges them all, and updates the
policy `iterations` times. Whatever a step does follows from the seed, its number and the weights before
it, so a killed run that starts again from its last checkpoint asks the worker for the same kernels and finds
them judged. (Prompts with exemplars also depend on the archive, which keeps what the lost steps found.)

With several processes (accelerate, DeepSpeed) the main process alone owns the worker, the archive and the
files: every rank sends it candidates and gets rewards back, so two timings never disturb each other.
"""

import json
import os
import random
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import msgspec
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from cudal2.worker.pool import Pool
from datasets import Dataset
from filelock import FileLock, Timeout
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from cudal2 import policy, source
from cudal2.archive import Archive
from cudal2.config import TrainConfig
from cudal2.policy.prompts import render
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Environment, HarnessFault, Verdict
from cudal2.target import find
from cudal2.train.callbacks import Metrics, Terminal, stop_on_signal
from cudal2.train.rewards import reward

MAY_CHANGE = ("trainer.steps", "trainer.save_steps", "trainer.resume", "tracker.", "worker.build_jobs")
"""What a resumed run may set anew: nothing of it changes what a step does."""


def run(config: TrainConfig) -> None:
    """Train, or go on training, in the folder `config.run`; see README for what it holds afterwards.

    Raises ValueError where the configuration cannot work or the folder holds a run with another one,
    HarnessFault where nothing can be judged, KeyboardInterrupt after a signal (everything is saved then).
    """
    find(config.target)
    problems = config.shapes.problems()
    folder = Path(config.run)
    folder.mkdir(parents=True, exist_ok=True)
    state = PartialState()
    with ExitStack() as stack:
        if state.is_main_process:
            stack.enter_context(_only_trainer_of(folder))
            _claim(folder, config)
        state.wait_for_everyone()
        checkpoint = latest_checkpoint(folder)
        done = 0 if checkpoint is None else _step_of(checkpoint) // config.trainer.iterations
        if done >= config.trainer.steps:
            print(f"{folder} has its {done} steps; a greater trainer.steps goes on from there")
            return
        terminal = (
            stack.enter_context(Terminal(config.trainer.steps, done)) if state.is_main_process else None
        )
        pool = stack.enter_context(Pool(config.worker)) if state.is_main_process else None
        archive = stack.enter_context(Archive(folder / "archive.sqlite"))
        stop = stack.enter_context(stop_on_signal())
        _hush()
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # the cores belong to the kernels; a second thread here slows both
        judge = Judge(config, pool, archive)
        trainer = _trainer(config, problems, judge)
        if state.is_main_process and terminal is not None:
            metrics = Metrics(folder, config.tracker, done, msgspec.to_builtins(config))
            stack.callback(metrics.close)
            terminal.say(
                f"{folder}: {config.trainer.steps} steps over {len(problems)} problems, from step {done}"
            )
            trainer.add_callback(_Report(judge, metrics, terminal, config.trainer.iterations))
        trainer.add_callback(_Stop(stop, config.trainer.iterations))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if stop.is_set():
            raise KeyboardInterrupt


def schedule(problems: Sequence[Problem], count: int, seed: int) -> list[Problem]:
    """`count` problems in shuffled passes over the list, so that each is met equally often.

    A longer schedule begins with the shorter one, so that a run can be extended.
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        found += rng.sample(problems, len(problems))
    return found[:count]


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run; what a kill left half-written is passed over."""
    found = sorted(folder.glob("checkpoints/checkpoint-*"), key=_step_of, reverse=True)
    return next((path for path in found if _complete(path)), None)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _complete(checkpoint: Path) -> bool:
    try:  # the trainer's state is written last
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return True


def _only_trainer_of(folder: Path) -> Any:
    lock = FileLock(folder / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder} is being trained by another process; choose another run=") from None


def _claim(folder: Path, config: TrainConfig) -> None:
    """Writes config.json; ValueError where the folder holds a run that this configuration cannot continue."""
    path = folder / "config.json"
    if path.exists():
        if config.trainer.resume == "never":
            raise ValueError(f"{folder} already holds a run; choose another run=, or trainer.resume=auto")
        before, now = _flat(json.loads(path.read_text())), _flat(msgspec.to_builtins(config))
        keys = [key for key in now | before if not key.startswith(MAY_CHANGE) and key != "run"]
        changed = [
            f"{key}={before.get(key)} became {now.get(key)}"
            for key in keys
            if before.get(key) != now.get(key)
        ]
        if changed:
            raise ValueError(
                f"{folder} was started with another configuration ({', '.join(changed)}); choose another "
                f"run=, or continue it as it is with `cudal2 train run={folder}`"
            )
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    fresh.replace(path)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves


class Judge:
    """The reward function TRL calls: completions in, rewards out, every sample into the archive.

    `row` describes the step that was judged last, for metrics.jsonl. Without a `pool` (on every rank but the
    main one) it only sends candidates and receives rewards.
    """

    __name__ = "kernel"

    def __init__(self, config: TrainConfig, pool: Pool | None, archive: Archive) -> None:
        self.config, self.pool, self.archive = config, pool, archive
        self.row: dict[str, Any] = {}
        self.started = self.finished = time.perf_counter()
        box = [pool.environment() if pool else None]
        self.environment: Environment = broadcast_object_list(box)[0]

    def prompt(self, problem: Problem, step: int) -> str | list[dict]:
        """The prompt for `problem`, with exemplars as good as the archive has at this step."""
        config, environment = self.config, self.environment
        rng = random.Random(f"{config.seed} {step} {problem.name}")
        exemplars = config.prompt.exemplars and self.archive.exemplars(
            problem, config.target, environment.fingerprint, config.prompt.exemplars, rng
        )
        target = find(config.target)
        return render(config.prompt, config.policy.chat, problem, target, exemplars or (), environment)

    def __call__(
        self, prompts: list, completions: list, problem: list[str], trainer_state: Any, **_: Any
    ) -> list[float | None]:
        judging = time.perf_counter()
        step = trainer_state.global_step // self.config.trainer.iterations + 1
        target = find(self.config.target)
        candidates = [
            Candidate(source.extract(_text(completion), target) or "", parse(name), target.name)
            for completion, name in zip(completions, problem)
        ]
        samples = gather_object(list(zip(candidates, map(_text, prompts))))
        box: list[Any] = [None]
        if self.pool is not None:
            try:
                box = [self._judge(self.pool, step, samples)]
            except HarnessFault as fault:  # raised on every rank, so that none waits for ever
                box = [fault]
        result = broadcast_object_list(box)[0]
        if isinstance(result, HarnessFault):
            raise result
        self.finished = time.perf_counter()
        if self.row:
            self.row["seconds"] = {"sample": judging - self.started, "judge": self.finished - judging}
        first = PartialState().process_index * len(candidates)
        return result[first : first + len(candidates)]

    def _judge(self, pool: Pool, step: int, samples: list[tuple[Candidate, str]]) -> list[float | None]:
        """Rewards, None where the harness failed for that sample; HarnessFault where it did for every one."""
        candidates = [candidate for candidate, _ in samples]
        verdicts = pool.evaluate(candidates)
        if all(verdict is None for verdict in verdicts):
            raise HarnessFault(
                f"no kernel of step {step} could be judged",
                "Run `cudal2 doctor`, then start again to continue",
            )
        rewards = [
            None if verdict is None else reward(verdict, candidate.source, self.config.reward)
            for candidate, verdict in zip(candidates, verdicts)
        ]
        origin = {
            "run": Path(self.config.run).resolve().name,
            "step": step,
            "policy": self.config.policy.path,
        }
        for index, (verdict, earned, (candidate, prompt)) in enumerate(zip(verdicts, rewards, samples)):
            if verdict is not None:
                where = {**origin, "index": index, "prompt": prompt, "reward": earned}
                self.archive.add(verdict, candidate, where)
        self.row = summarize(step, verdicts, rewards, candidates)
        return rewards


def summarize(
    step: int,
    verdicts: Sequence[Verdict | None],
    rewards: Sequence[float | None],
    candidates: Sequence[Candidate],
) -> dict[str, Any]:
    """What one step's verdicts say, masked samples (None) left out of all figures but their own count.

    `speedup_mean` counts a failure as 0, `speedup_ok_mean` leaves it out; both are over the best baseline.
    """
    judged = [verdict for verdict in verdicts if verdict is not None]
    earned = [value for value in rewards if value is not None]
    speedups = [verdict.speedup or 0.0 for verdict in judged]
    working = [verdict.speedup or 0.0 for verdict in judged if verdict.ok]
    return {
        "step": step,
        "samples": len(verdicts),
        "masked": len(verdicts) - len(judged),
        "reward_mean": fmean(earned),
        "reward_std": pstdev(earned),
        "speedup_mean": fmean(speedups),
        "speedup_ok_mean": fmean(working) if working else 0.0,
        "speedup_best": max(speedups),
        "statuses": dict(Counter(verdict.status.value for verdict in judged).most_common()),
        "cached_share": fmean(verdict.cached for verdict in judged),
        "unique": len({candidate.key for candidate in candidates}),
        "problems": sorted({candidate.problem.name for candidate in candidates}),
    }


class KernelTrainer(GRPOTrainer):
    """TRL's trainer, with each step's randomness and prompts made from its number when it is sampled."""

    def __init__(self, judge: Judge, seed: int, **arguments: Any) -> None:
        super().__init__(reward_funcs=judge, **arguments)
        self.judge, self.seed = judge, seed

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        step = self.state.global_step // self.num_iterations + 1
        torch.manual_seed(hash((self.seed, step, self.accelerator.process_index)))
        self.judge.started = time.perf_counter()
        written = {name: self.judge.prompt(parse(name), step) for name in {row["problem"] for row in inputs}}
        return super()._generate_and_score_completions(
            [{**row, "prompt": written[row["problem"]]} for row in inputs]
        )


def _require(package: str, setting: str) -> None:
    if find_spec(package) is None:
        raise ValueError(f'{setting} needs a package: pip install "cudal2[{package}]"')


def _trainer(config: TrainConfig, problems: Sequence[Problem], judge: Judge) -> KernelTrainer:
    model, tokenizer = policy.load(config.policy)
    names = [
        problem.name
        for problem in schedule(
            problems, config.trainer.steps * config.trainer.problems_per_step, config.seed
        )
    ]
    trainer = KernelTrainer(
        judge,
        config.seed,
        model=model,
        processing_class=tokenizer,
        args=_arguments(config),
        train_dataset=Dataset.from_dict({"prompt": [""] * len(names), "problem": names}),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(config: TrainConfig) -> GRPOConfig:
    trainer, sampling = config.trainer, config.policy
    if sampling.sampler == "vllm":
        _require("vllm", "policy.sampler=vllm")
    if trainer.deepspeed:
        _require("deepspeed", f"trainer.deepspeed={trainer.deepspeed}")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    batch = trainer.problems_per_step * trainer.group_size
    micro = trainer.micro_batch or max(batch // ranks, 1)
    if batch % (ranks * micro):
        raise ValueError(
            f"a step has problems_per_step × group_size = {batch} samples, which {ranks} processes with "
            f"trainer.micro_batch={micro} cannot share equally"
        )
    return GRPOConfig(
        output_dir=str(Path(config.run) / "checkpoints"),
        seed=config.seed,
        max_steps=trainer.steps * trainer.iterations,
        num_generations=trainer.group_size,
        num_iterations=trainer.iterations,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // (ranks * micro),
        shuffle_dataset=False,  # the schedule is shuffled already
        learning_rate=trainer.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=trainer.max_grad_norm,
        beta=trainer.beta,
        epsilon=trainer.epsilon,
        scale_rewards=trainer.scale_rewards,
        gradient_checkpointing=trainer.gradient_checkpointing,
        deepspeed=trainer.deepspeed or None,
        bf16=sampling.dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_completion_length=sampling.max_new_tokens,
        use_vllm=sampling.sampler == "vllm",
        vllm_mode="colocate",
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

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if not logs or "loss" not in logs or state.global_step % self.iterations:
            return
        row = self.judge.row
        row["seconds"]["update"] = time.perf_counter() - self.judge.finished
        row["learning_rate"] = logs["learning_rate"]
        names = {"loss": "loss", "grad_norm": "grad_norm", "kl": "kl", "entropy": "entropy"}
        names["completions/mean_length"] = "tokens_mean"
        row |= {ours: float(logs[theirs]) for theirs, ours in names.items() if logs.get(theirs) is not None}
        self.metrics.log(row)
        self.terminal.show(row)


class _Stop(TrainerCallback):
    """Ends training with a checkpoint after the step in which the event was set."""

    def __init__(self, event: Any, iterations: int) -> None:
        self.event, self.iterations = event, iterations

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.iterations == 0 and (
            any(gather_object([self.event.is_set()])) or state.global_step >= state.max_steps
        ):
            control.should_save = control.should_training_stop = True


def _hush() -> None:
    """Keeps the terminal for the run's own lines; errors still come through as exceptions."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def _text(message: Any) -> str:
    """A prompt or completion as text: itself, or the contents of its chat messages."""
    return message if isinstance(message, str) else "\n".join(part["content"] for part in message)
