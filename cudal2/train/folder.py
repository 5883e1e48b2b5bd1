"""The folder of a run: its lock, the configuration stored in it, whether a run may continue there, and which
of its files are uploaded to Weights & Biases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from cudal2.archive import Archive
from cudal2.archive.selection import Comparable
from cudal2.config import Config, Schema, TrainConfig, identity
from cudal2.policy.locate import latest_checkpoint
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.target import find
from cudal2.tracking import WandbRun


def only_trainer_of(folder: Path) -> Any:
    """The folder's lock, held until it is released; ValueError where another process holds it."""
    lock = FileLock(folder / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another process works on the run in {folder}; choose another run=") from None


def stored(folder: Path, schema: type[Config]) -> Config | None:
    """The configuration of the run in `folder`, None where there is none.

    Raises ValueError where it is not of `schema`: one verb must not overwrite the run of another.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=schema)
    except msgspec.MsgspecError as error:
        kind = schema.__name__.removesuffix("Config").lower()
        raise ValueError(f"{path} is not the configuration of a {kind} run ({error}); choose another run=") from error


def check(folder: Path, config: TrainConfig) -> None:
    """Raises ValueError where the folder holds a run that this configuration cannot continue.

    A run in which nothing was judged may be replaced: its configuration may have been the reason.
    """
    before = stored(folder, TrainConfig)
    if before is None or not begun(folder):
        return
    if config.trainer.resume == "never":
        raise ValueError(f"{folder} already holds a run; choose another run=, or trainer.resume=auto")
    from cudal2.train.algorithms import settled  # here, for it takes seconds, and other verbs use this module too

    before, now = (msgspec.structs.replace(one, trainer=settled(one.trainer)) for one in (before, config))
    if changed := changes(before, now):
        raise ValueError(
            f"{folder} was started with another configuration ({changed}); choose another "
            f"run=, or continue it as it is with `cudal2 train run={folder}`"
        )


def begun(folder: Path) -> bool:
    """Whether anything was judged or trained in the folder."""
    if latest_checkpoint(folder):
        return True
    if not Archive.file(folder).exists():
        return False
    with Archive.of(folder, create=False) as archive:
        return next(archive.samples(), None) is not None


def record(path: Path, config: Schema) -> None:
    """Writes the configuration as JSON, atomically."""
    fresh = path.with_suffix(".tmp")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
    fresh.replace(path)


def changes(before: Config, now: Config) -> str:
    """How two configurations differ, `key=old became new, …`, without keys that no result depends on."""
    old, new = identity(before, whole=True), identity(now, whole=True)
    return ", ".join(f"{key}={old[key]} became {value}" for key, value in new.items() if old[key] != value)


STATE = (".pt", ".pth", ".bin", ".py", "trainer_state.json", "latest")
"""Endings of the files in a checkpoint that only training needs, its own and DeepSpeed's."""


def upload(
    tracked: WandbRun, config: TrainConfig, problems: Sequence[Problem], archive: Archive, fingerprint: str
) -> None:
    """Stores the configuration, the metrics, the best kernel of each problem with its verdict; if asked, the policy."""
    folder, target = Path(config.run), find(config.target)
    files: dict[str, Path | str] = {name: folder / name for name in ("config.json", "metrics.jsonl")}
    kernels = Comparable(archive, config.target, fingerprint)
    for problem in problems:
        if best := kernels.best(problem):
            files[f"kernels/{problem.name}{target.suffix}"] = best.source
            files[f"kernels/{problem.name}.json"] = to_json(best.verdict)
    tracked.keep("run", files)
    checkpoint = latest_checkpoint(folder)
    if config.tracker.policy and checkpoint:
        tracked.keep("policy", {path.name: path for path in _policy_files(checkpoint)})


def _policy_files(checkpoint: Path) -> list[Path]:
    """The files of the model or its adapters, and of the tokenizer."""
    return [path for path in sorted(checkpoint.iterdir()) if path.is_file() and not path.name.endswith(STATE)]
