"""What a trainer calls back: what the terminal and the metrics show of a run, and when checkpoints are saved."""

import logging
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
from datasets import disable_progress_bars
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeRemainingColumn
from transformers import PrinterCallback, Trainer, TrainerCallback

from cudal2.config import SftConfig, TrainerConfig
from cudal2.policy import model
from cudal2.policy.locate import step_of
from cudal2.tracking import Metrics
from cudal2.train import summary


def quiet() -> None:
    """Silences libraries, so that the terminal shows a run's own lines only."""
    model.quiet()
    disable_progress_bars()
    # DeepSpeed calls what is there by former names.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    warnings.filterwarnings("ignore", message="You are using 'rollout_func'", category=UserWarning)
    # PEFT asks whether the vocabulary has grown, which it has not, of a model that came as a GGUF file.
    warnings.filterwarnings("ignore", message="Could not find a config file in", category=UserWarning)
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(_of_use)


def _of_use(record: logging.LogRecord) -> bool:
    """Not TRL's warning that a sample has no reward, with the whole of its text: the step's line says how many."""
    return "All reward functions returned None" not in str(record.msg)


def taken(rows: list[dict[str, Any]]) -> float:
    """Seconds that these steps took, summed over all phases."""
    return sum(sum(row["seconds"].values()) for row in rows)


class Terminal:
    """Prints one line per step. On a terminal a bar below them also counts the judged kernels of the present step.

    The bar fills by steps, or by time where the time ends the run.
    """

    def __init__(self, trainer: TrainerConfig, done: int, seconds: float) -> None:
        self._trainer, self._seconds, self._judged = trainer, seconds, 0
        self._said: set[str] = set()
        console = Console(file=sys.stdout, highlight=False)
        columns = ("[bold]train", BarColumn(), "{task.fields[at]}", TimeRemainingColumn(), "{task.fields[judged]}")
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        total = trainer.minutes * 60 or trainer.steps
        self._task = self._bar.add_task("train", total=total, judged="", at="")
        self._show(done)

    def __enter__(self) -> "Terminal":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def judged(self, *_: object) -> None:
        """Counts one more verdict of this step."""
        self._judged += 1
        self._bar.update(self._task, judged=f"judged {self._judged}")

    def show(self, row: dict[str, Any]) -> None:
        """Prints the line of a complete step, and what is wrong, each kind once; `row` is its line of metrics."""
        self._judged = 0
        self._seconds += taken([row])
        self._show(row["step"])
        self.say(describe(row, self._at(row["step"])))
        for kind, text in summary.troubles_of(row).items():
            if kind not in self._said:
                self._said.add(kind)
                self.say(f"  ! {text}")

    def _show(self, step: int) -> None:
        completed = self._seconds if self._trainer.minutes else step
        self._bar.update(self._task, completed=completed, judged="", at=self._at(step))

    def _at(self, step: int) -> str:
        if self._trainer.minutes:
            return f"{step:>3}, {self._seconds / 60:.1f}/{self._trainer.minutes:g} min"
        return f"{step:>3}/{self._trainer.steps}"

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._bar.disable:
            print(text, flush=True)
        else:
            self._bar.console.print(text, markup=False, soft_wrap=True)


def describe(row: dict[str, Any], at: str) -> str:
    """One step, and how far the run is: `step 3/30  reward 0.82 ± 0.31  speedup 0.41 (best 1.32)  ok 28/32 …`."""
    seconds = row["seconds"]
    cut = f"  cut off {row['cut_share']:.0%}" if row.get("cut_share") else ""
    others = row["statuses"] | {"no verdict": row.get("masked")}
    failed = "  ".join(f"{name} {count}" for name, count in others.items() if count and name != "ok")
    return (
        f"step {at}  reward {row['reward_mean']:6.3f} ± {row['reward_std']:.3f}  "
        f"speedup {row['speedup_mean']:.3f} (best {row['speedup_best']:.3f})  "
        f"ok {row['statuses'].get('ok', 0)}/{row['samples']}  cached {row['cached_share']:4.0%}  "
        f"{sum(seconds.values()):5.1f} s (judging {seconds['judge']:.1f}){cut}  {failed}"
    ).rstrip()


class SavesAsAsked(TrainerCallback):
    """Saves at the interval of this start; a checkpoint would restore that of the start that wrote it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.compute_steps(args, state.max_steps)


class ReportsLoss(TrainerCallback):
    """A line of metrics and one on the terminal, whenever supervised training logs its loss, and after the last step.

    If the trainer counts them, also `accuracy` (the share of the trained tokens that the model ranked first), `tokens`
    (the number so far) and tokens per second. Raises ValueError where the loss is not finite.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._last = 0.0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log |= state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        row = {key: float(logs[key]) for key in ("loss", "learning_rate", "grad_norm")}
        if not math.isfinite(row["loss"]):
            raise ValueError(f"the loss is {row['loss']} at step {state.global_step}; lower learning_rate")
        if "num_tokens" in logs:
            now = float(logs["num_tokens"]), time.perf_counter()
            row |= {"accuracy": float(logs["mean_token_accuracy"]), "tokens": now[0]}
            row["tokens_per_second"] = (now[0] - self._last[0]) / (now[1] - self._last[1])
            self._last = now
        self.metrics.log({"step": state.global_step, **row})
        speed = f"  {row['tokens_per_second']:.0f} tokens/s" if "tokens" in row else ""
        print(f"step {state.global_step:>5}/{state.max_steps}  loss {row['loss']:.4f}{speed}", flush=True)


def fit(trainer: Trainer, config: SftConfig, checkpoint: Path | None = None) -> None:
    """Supervised training to the end, from the checkpoint if there is one, with a line of metrics every few steps."""
    trainer.remove_callback(PrinterCallback)
    metrics = Metrics(Path(config.run), config.tracker, step_of(checkpoint), msgspec.to_builtins(config))
    trained: Any = trainer.model
    try:
        trainer.add_callback(ReportsLoss(metrics))
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        trained.config.use_cache = True  # the trainer turned off what makes sampling fast
        if metrics.wandb:
            metrics.wandb.keep("run", {name: Path(config.run) / name for name in ("config.json", "metrics.jsonl")})
    finally:
        metrics.close()


class WithoutCard:
    """A TRL trainer that writes no model card beside every checkpoint; config.json and metrics describe the run."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        pass
