"""The folder of a training run: who may write to it, which configuration it holds, where it continues."""

import json
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from cudal2.config import TrainConfig

MAY_CHANGE = ("trainer.steps", "trainer.save_steps", "trainer.resume", "tracker.", "worker.build_jobs")
"""What a resumed run may set anew: nothing of it changes what a step does."""


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run; what a kill left half-written is passed over."""
    found = sorted(folder.glob("checkpoints/checkpoint-*"), key=step_of, reverse=True)
    return next((path for path in found if _complete(path)), None)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _complete(checkpoint: Path) -> bool:
    try:  # the trainer's state is written last
        json.loads((checkpoint / "trainer_state.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return True


def only_trainer_of(folder: Path) -> Any:
    lock = FileLock(folder / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder} is being trained by another process; choose another run=") from None


def claim(folder: Path, config: TrainConfig) -> None:
    """Writes config.json; ValueError where the folder holds a run that this configuration cannot continue."""
    path = folder / "config.json"
    text = msgspec.json.format(msgspec.json.encode(config), indent=2)
    if path.exists():
        if config.trainer.resume == "never":
            raise ValueError(f"{folder} already holds a run; choose another run=, or trainer.resume=auto")
        before, now = _flat(json.loads(path.read_bytes())), _flat(json.loads(text))
        keys = [key for key in now | before if not key.startswith(MAY_CHANGE) and key != "run"]
        changed = [f"{key}={before.get(key)} became {now.get(key)}" for key in keys if before.get(key) != now.get(key)]
        if changed:
            raise ValueError(
                f"{folder} was started with another configuration ({', '.join(changed)}); choose another "
                f"run=, or continue it as it is with `cudal2 train run={folder}`"
            )
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(text)
    fresh.replace(path)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
