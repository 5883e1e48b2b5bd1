"""Supervised training of an existing model with its own tokenizer: TRL's SFTTrainer on whole samples.

It continues from its last checkpoint. Samples that are too long are left out beforehand: TRL would cut them, and the
model would learn to stop in the middle of a kernel.
"""

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from msgspec.structs import replace
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import SFTConfig as TrlConfig
from trl import SFTTrainer

from cudal2.config import SftConfig
from cudal2.policy.checkpoints import latest_checkpoint
from cudal2.policy.model import check, load_to_train
from cudal2.train.callbacks import SavesAsAsked, WithoutCard, quiet
from cudal2.train.devices import one_gpu
from cudal2.train.sft import supervised
from cudal2.train.sft.answers import end_of_turn
from cudal2.train.sft.examples import Row

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
    tuning, folder = config.tuning, Path(config.run)
    arguments = TrlConfig(
        **supervised.arguments(config),
        max_length=config.context,
        packing=tuning.packing,
        packing_strategy="bfd",
        per_device_train_batch_size=tuning.micro_batch,
        gradient_accumulation_steps=config.batch_size // tuning.micro_batch,
        gradient_checkpointing=tuning.gradient_checkpointing,
        logging_first_step=True,
        save_strategy="steps",
        save_steps=tuning.save_steps,
        save_total_limit=2,
    )
    trainer = _Trainer(
        model, one_gpu(arguments), train_dataset=dataset(rows), processing_class=tokenizer, callbacks=[SavesAsAsked()]
    )
    supervised.fit(trainer, config, latest_checkpoint(folder))


def dataset(rows: list[Row]) -> Dataset:
    """Rows as SFTTrainer takes them: `input_ids` and `labels`, which are -100 where the loss does not count."""
    learnt = [np.where(np.arange(len(row.ids)) < row.given, -100, row.ids).astype(np.int32) for row in rows]
    return Dataset.from_dict({"input_ids": [row.ids for row in rows], "labels": learnt})


class _Trainer(WithoutCard, SFTTrainer):
    pass
