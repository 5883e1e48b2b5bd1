"""Supervised training of an existing model with its own tokenizer: TRL's SFTTrainer on whole samples.

It continues from its last checkpoint. Samples that are too long are left out beforehand: TRL would cut them, and the
model would learn to stop in the middle of a kernel.

It may end in time: the learning rate has come down when the time is up, however many updates fitted in.
"""

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from msgspec.structs import replace
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer

from cudal2.config import SftConfig
from cudal2.policy.locate import latest_checkpoint
from cudal2.policy.model import check, load_to_train
from cudal2.train import callbacks, options
from cudal2.train.callbacks import SavesAsAsked, WithoutCard, quiet
from cudal2.train.sft.examples import Row, end_of_turn

PROBE = "\t// a ≤ b\n    int  x = 0; \n\n}  /* !, ' */"
"""A text that a tokenizer must encode and decode unchanged: runs of blanks and line feeds, signs beyond ASCII."""


def load(config: SftConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in `config.policy`, with all weights or adapters to train, and its tokenizer.

    Raises ValueError where its context is shorter than `context` tokens, its tokenizer changes a source, or
    `policy.chat` is set and it has no chat template.
    """
    quiet()
    path = config.policy.path
    # The result will be sampled, perhaps by vLLM, which cannot read every model that training can start from.
    model, tokenizer = load_to_train(replace(config.policy, sampler="transformers"), config.seed)
    check(tokenizer, config.target)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions and positions < config.context:
        raise ValueError(f"context={config.context} is more than the {positions} tokens that {path} reads at once")
    again: Any = tokenizer.decode(tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    if again.strip() != PROBE.strip():
        raise ValueError(f"the tokenizer of {path} makes {again!r} of {PROBE!r}: it cannot write sources")
    if config.policy.chat:
        if tokenizer.chat_template is None:
            raise ValueError(f"{path} has no chat template; set policy.chat=false")
        settings: Any = model.generation_config
        settings.eos_token_id = sorted({*settings.eos_token_id, end_of_turn(tokenizer)})
    return model, tokenizer


def fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[Row], config: SftConfig) -> None:
    """Train on `rows`, each of at most `context` tokens; the loss does not count their prompts."""
    tuning, folder, cuda = config.tuning, Path(config.run), torch.cuda.is_available()
    arguments = TrlConfig(
        **options.supervised(config),
        max_length=config.context,
        packing=tuning.packing,
        packing_strategy="bfd",
        # TRL would only look for rows to cut, for a minute and a half in 14,000 rows.
        dataset_kwargs={"skip_prepare_dataset": not tuning.packing},
        train_sampling_strategy="random" if tuning.packing else "sequential",
        pad_to_multiple_of=options.STRIDE if cuda and not tuning.packing else None,
        per_device_train_batch_size=tuning.micro_batch,
        gradient_accumulation_steps=config.batch_size // tuning.micro_batch,
        gradient_checkpointing=tuning.gradient_checkpointing,
        logging_first_step=True,
        save_strategy="steps",
        save_steps=tuning.save_steps,
        save_total_limit=2,
    )
    learnt = dataset(rows if tuning.packing else in_order(rows, config.batch_size, config.seed))
    trainer = _Trainer(
        model, options.one_gpu(arguments), train_dataset=learnt, processing_class=tokenizer, callbacks=[SavesAsAsked()]
    )
    if tuning.minutes:
        trainer.seconds = 60 * tuning.minutes
        trainer.add_callback(_Stops(trainer))
    if cuda:
        options.fuse(model)
    with options.attention(), options.unmasked(model):
        callbacks.fit(trainer, config, latest_checkpoint(folder))


def in_order(rows: Sequence[Row], batch: int, seed: int) -> list[Row]:
    """The rows shuffled, and those of each update sorted by their length: so little padding is needed, while an update
    sees lengths, and families, of all kinds."""
    mixed = random.Random(seed).sample(rows, len(rows))
    updates = (mixed[start : start + batch] for start in range(0, len(mixed), batch))
    return [row for update in updates for row in sorted(update, key=lambda row: len(row.ids))]


def dataset(rows: list[Row]) -> Dataset:
    """Rows as SFTTrainer takes them: `input_ids` and `labels`, which are -100 where the loss does not count."""
    learnt = [np.where(np.arange(len(row.ids)) < row.given, -100, row.ids).astype(np.int32) for row in rows]
    return Dataset.from_dict({"input_ids": [row.ids for row in rows], "labels": learnt})


class Rate:
    """The share of the learning rate at each update: a linear rise over `warm` updates, then half a cosine, down to 0
    at the last of `steps` updates or after `seconds` of training, whichever comes first.

    Its attributes are kept in checkpoints, so `spent` seconds count over all starts.
    """

    def __init__(self, steps: int, warm: int, seconds: float) -> None:
        self.steps, self.warm, self.seconds, self.spent = steps, warm, seconds, 0.0

    def __call__(self, step: int) -> float:
        done = max((step - self.warm) / max(self.steps - self.warm, 1), self.spent / self.seconds)
        return min(step / max(self.warm, 1), 0.5 + 0.5 * math.cos(math.pi * min(max(done, 0.0), 1.0)))


class _Stops(TrainerCallback):
    """Counts the time of each update for the trainer's `rate`, and ends training when it is up."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._last = trainer, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        rate, now = self._trainer.rate, time.perf_counter()
        rate.spent += now - self._last
        self._last = now

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer.rate.spent >= self._trainer.rate.seconds:
            control.should_training_stop = control.should_log = True


class _Trainer(WithoutCard, SFTTrainer):
    """With `seconds` above 0 its learning rate is `rate`'s share of the configured one."""

    seconds = 0.0
    rate: Rate

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.seconds and self.lr_scheduler is None:
            self.rate = Rate(num_training_steps, self.args.get_warmup_steps(num_training_steps), self.seconds)
            updated: Any = optimizer or self.optimizer
            self.lr_scheduler = LambdaLR(updated, self.rate)
        return super().create_scheduler(num_training_steps, optimizer)
