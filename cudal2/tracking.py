"""Metrics of everything that runs in steps: a file of JSON lines and, where it is chosen, Weights & Biases."""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cudal2.config import TrackerConfig

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


ID = "wandb_id"
"""The file in a run's folder that keeps the run's id at Weights & Biases, even if the folder is renamed."""
_STAGED = "WANDB_DATA_DIR"


class WandbRun:
    """The run in the folder `run`: the first start creates it, and every later one continues it under the same id.

    Raises ValueError where the package is missing, or the login that `tracker.mode` needs.
    """

    def __init__(self, run: Path, tracker: TrackerConfig, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise ValueError('tracker=wandb needs a package: pip install "cudal2[wandb]"') from error
        if tracker.mode == "online" and not wandb.api.api_key:
            raise ValueError("tracker.mode=online needs a login: run `wandb login` once, or use offline")
        self._wandb = wandb
        if not (run / ID).is_file():
            (run / ID).write_text(secrets.token_hex(6) + "\n")
        self.id = (run / ID).read_text().strip()
        self._staged = os.environ.get(_STAGED)
        # Artefacts are copied here: beside the run's own files, not into the user's home.
        os.environ[_STAGED] = self._staged or str((run / "wandb" / "data").resolve())
        self._run: Any = wandb.init(
            project=tracker.project,
            name="/".join(run.resolve().parts[-2:]),
            id=self.id,
            resume="allow",
            dir=str(run),
            mode=tracker.mode,
            config=config,
            settings=wandb.Settings(console="off"),  # the terminal's bar would fill a log
        )

    def log(self, row: Mapping[str, Any], tables: Mapping[str, Sequence[dict]]) -> None:
        """One step, `row["step"]`, with its tables."""
        shown = {name: self._table(rows) for name, rows in tables.items() if rows}
        self._run.log(_plain(row) | shown, step=row["step"])

    def show(self, name: str, rows: Sequence[dict]) -> None:
        """A table of the whole run, after its last step."""
        if rows:
            self._run.log({name: self._table(rows)})

    def keep(self, kind: str, files: Mapping[str, Path | str]) -> None:
        """Stores an artefact of that kind, `run` or `policy`, as its latest version: files by name, each a path or
        the file's text; a path without a file is left out."""
        artefact = self._wandb.Artifact(f"{kind}-{self.id}", type=kind)
        for name, content in files.items():
            if isinstance(content, str):
                with artefact.new_file(name) as file:
                    file.write(content)
            elif content.is_file():
                artefact.add_file(str(content), name)
        self._run.log_artifact(artefact)

    def close(self) -> None:
        """Ends the run at Weights & Biases; afterwards everything is on the disk, or uploaded."""
        self._run.finish()
        if self._staged is None:
            os.environ.pop(_STAGED, None)

    def _table(self, rows: Sequence[dict]) -> Any:
        columns = list(rows[0])
        return self._wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in rows])


def _plain(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values with all keys as text, at every depth; those of decades are numbers."""
    return {str(key): _plain(value) if isinstance(value, Mapping) else value for key, value in values.items()}
