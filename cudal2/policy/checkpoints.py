"""Which model a run's folder holds: what supervised training made, or the newest complete checkpoint."""

import json
from pathlib import Path


def trained(folder: Path) -> Path | None:
    """The model that a run in this folder has made so far; None where it holds none."""
    policy = folder / "policy"
    whole = any((policy / name).is_file() for name in ("config.json", "adapter_config.json"))
    return policy if whole else latest_checkpoint(folder)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run; one that a kill left half-written is passed over."""
    found = sorted(folder.glob("checkpoints/checkpoint-*"), key=step_of, reverse=True)
    return next((path for path in found if _complete(path)), None)


def step_of(checkpoint: Path | None) -> int:
    """The number of updates before a checkpoint; 0 where there is none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def _complete(checkpoint: Path) -> bool:
    try:  # the trainer's state is written last
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return True
