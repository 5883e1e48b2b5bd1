"""Metrics of everything that runs in steps: a file of JSON lines and, where it is chosen, Weights & Biases."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cudal2.config import TrackerConfig
from cudal2.tracking.wandb_run import WandbRun

CAMPAIGN = "campaign.jsonl"
"""In a campaign's folder: a line for each slice that was worked on, with how long that took."""


class Metrics:
    """Appends one JSON line per step to `metrics.jsonl`, and logs it to Weights & Biases where that is chosen.

    Lines after `step` are dropped on opening, as a resumed run repeats these steps. So is a line that a kill left
    incomplete.
    """

    def __init__(self, run: Path, tracker: TrackerConfig, step: int, config: dict[str, Any]) -> None:
        self.path = run / "metrics.jsonl"
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in kept))
        fresh.replace(self.path)
        self.wandb = WandbRun(run, tracker, config) if tracker.name == "wandb" else None
        """The run at Weights & Biases; None where it is not chosen."""

    def log(
        self, row: dict[str, Any], durable: bool = True, tables: Mapping[str, Sequence[dict]] | None = None
    ) -> None:
        """Writes one step to the file, so that a kill loses nothing that was reported; where `durable`, to the disk,
        which takes milliseconds. Tables, each a list of rows with the same keys, go to Weights & Biases alone.
        """
        append(self.path, row, durable)
        if self.wandb:
            self.wandb.log({key: value for key, value in row.items() if key != "problems"}, tables or {})

    def close(self) -> None:
        if self.wandb:
            self.wandb.close()


def append(path: Path, row: dict[str, Any], durable: bool = True) -> None:
    """Appends a line to a file of JSON lines; with `durable` it is on the disk when this returns."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        torn = end and file.read() != b"\n"
        file.write(b"\n" * bool(torn) + json.dumps(row).encode() + b"\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file, oldest first; an absent file is an empty one, and torn lines are none."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(ValueError):  # torn by a kill or a full disk
            rows.append(json.loads(line))
    return rows
