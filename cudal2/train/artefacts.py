"""The small files that a run of GRPO uploads to Weights & Biases when it ends: its configuration and its results."""

from collections.abc import Sequence
from pathlib import Path

from cudal2.archive import Archive
from cudal2.archive.comparable import Comparable
from cudal2.config import TrainConfig
from cudal2.policy.checkpoints import latest_checkpoint
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.target import find
from cudal2.tracking.wandb_run import WandbRun

STATE = (".pt", ".pth", ".bin", ".py", "trainer_state.json", "latest")
"""Endings of the files in a checkpoint that only training needs, its own and DeepSpeed's."""


def keep(
    tracked: WandbRun, config: TrainConfig, problems: Sequence[Problem], archive: Archive, fingerprint: str
) -> None:
    """Keeps the configuration, the metrics, the best kernel of each problem with its verdict; if asked, the policy."""
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
        tracked.keep("policy", {path.name: path for path in policy_files(checkpoint)})


def policy_files(checkpoint: Path) -> list[Path]:
    """The files of the model or its adapters, and of the tokenizer."""
    return [path for path in sorted(checkpoint.iterdir()) if path.is_file() and not path.name.endswith(STATE)]
