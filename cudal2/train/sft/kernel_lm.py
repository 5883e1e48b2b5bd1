"""Supervised training of the kernel LM: all its weights, on rows that share lines of a batch."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

from cudal2.config import SftConfig
from cudal2.train import callbacks, options
from cudal2.train.sft.examples import Row


def fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[Row], config: SftConfig) -> None:
    """Train all weights, with a line of metrics every few steps."""
    arguments = TrainingArguments(
        **options.supervised(config),
        per_device_train_batch_size=config.batch_size,
        remove_unused_columns=False,  # `batch` uses `given`
        save_strategy="no",
    )
    trainer = Trainer(
        model,
        options.one_gpu(arguments),
        train_dataset=[{"input_ids": row.ids, "given": row.given} for row in rows],
        data_collator=partial(batch, pad=tokenizer.pad_token_id),
    )
    with options.attention():
        callbacks.fit(trainer, config)


def batch(rows: Sequence[dict[str, Any]], pad: int) -> dict[str, Any]:
    """Token ids, labels and positions [lines, length] of rows, of which several may share a line.

    Positions begin again with each row, by which transformers tells rows apart where nothing is cached: none sees
    another. The loss counts a row's source and its end, not its prompt, so no row is guessed from the one before.
    """
    lengths = [len(row["input_ids"]) for row in rows]
    lines = packed(lengths)
    shape = len(lines), -(-max(lengths) // options.STRIDE) * options.STRIDE
    ids, labels, positions = np.full(shape, pad), np.full(shape, -100), np.zeros(shape, np.int64)
    for place, line in enumerate(lines):
        start = 0
        for number in line:
            row, given = rows[number]["input_ids"], rows[number]["given"]
            end = start + len(row)
            ids[place, start:end] = row
            labels[place, start + given : end] = row[given:]
            positions[place, start:] = np.arange(shape[1] - start)  # what is behind the last row goes on with it
            start = end
    return {
        "input_ids": torch.from_numpy(ids),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
        "use_cache": False,
    }


def packed(lengths: Sequence[int]) -> list[list[int]]:
    """The numbers of the rows that share each line, none longer than the longest row: first fit, longest first."""
    room, lines = list[int](), list[list[int]]()
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        place = next((at for at, left in enumerate(room) if lengths[number] <= left), len(lines))
        if place == len(lines):
            room.append(max(lengths))
            lines.append([])
        room[place] -= lengths[number]
        lines[place].append(number)
    return lines
