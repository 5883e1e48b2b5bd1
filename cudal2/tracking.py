"""Metrics of whatever runs in steps: a file of JSON lines, and Weights & Biases where it is chosen."""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from cudal2.config import TrackerConfig


class Metrics:
    """Appends one JSON line a step to `metrics.jsonl`, and sends it to Weights & Biases when chosen.

    Lines after `step` are dropped on opening: they belong to steps that a resumed run takes again. So is a
    line that a kill left torn.
    """

    def __init__(self, run: Path, tracker: TrackerConfig, step: int, config: dict[str, Any]) -> None:
        self.path = run / "metrics.jsonl"
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text("".join(json.dumps(row) + "\n" for row in kept))
        fresh.replace(self.path)
        self._wandb = _start_wandb(run, tracker, config) if tracker.name == "wandb" else None

    def log(self, row: dict[str, Any], durable: bool = True) -> None:
        """Writes one step to the file, so that a kill loses nothing that was reported; where `durable`, to the disk,
        which takes milliseconds.
        """
        append(self.path, row, durable)
        if self._wandb:
            self._wandb.log({key: value for key, value in row.items() if key != "problems"}, step=row["step"])

    def close(self) -> None:
        if self._wandb:
            self._wandb.finish()


def append(path: Path, row: dict[str, Any], durable: bool = True) -> None:
    """One more line in a file of JSON lines; where `durable`, on the disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file, oldest first; an absent file is an empty one."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break  # torn by a kill; nothing can follow it
    return rows


def _start_wandb(run: Path, tracker: TrackerConfig, config: dict[str, Any]) -> ModuleType | Any:
    try:
        import wandb
    except ModuleNotFoundError as error:
        raise ValueError('tracker=wandb needs a package: pip install "cudal2[wandb]"') from error
    if tracker.mode == "online" and not wandb.api.api_key:
        raise ValueError("tracker.mode=online needs a login: run `wandb login` once, or use offline")
    return wandb.init(
        project=tracker.project,
        name=run.name,
        id=run.name,
        resume="allow",
        dir=str(run),
        mode=tracker.mode,
        config=config,
    )
