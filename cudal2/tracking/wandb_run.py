"""A run at Weights & Biases: curves, configuration, tables of kernels, and small files of results.

Offline all of it is in `RUN/wandb`, and `wandb sync RUN/wandb/offline-run-*` uploads it. (Artefacts are recorded by
their path on this machine: from another machine curves and tables can be uploaded, but not the artefacts.)
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cudal2.config import TrackerConfig

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
