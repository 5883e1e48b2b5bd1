"""What users of Hydra type, and what must come of it: real command lines, a row each (docs/hydra.md says the same)."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

SHOWN = {
    "seed=3": ("seed", 3),
    "++seed=3": ("seed", 3),
    "reward=milestone": ("reward.name", "milestone"),
    "worker.devices=0,1": ("worker.devices", [0, 1]),
    "'worker.devices=[0, 1]'": ("worker.devices", [0, 1]),
    "shapes.names=64_64_64,128_64_64": ("shapes.names", ["64_64_64", "128_64_64"]),
    "'run=demo (1)'": ("run", "demo (1)"),
    "run=20261126": ("run", "20261126"),
    "run=démo": ("run", "démo"),
    "'run=a[1]'": ("run", "a[1]"),
    "run=demo,lr=1e-4": ("run", "demo,lr=1e-4"),
    "run=demo#2": ("run", "demo#2"),
    "'run=runs/${seed}' seed=7": ("run", "runs/7"),
    "experiment=smoke trainer.steps=5": ("trainer.steps", 5),
}
"""Words behind `cudal2 train --cfg job`, and a key of the printed configuration with its value."""

REFUSED = {
    "train seed=0,1 run=r": "-m",
    "train run=": "run=",
    "train +seed=1": "seed",
    "train +new=1": "new",
    "train ~seed": "seed",
    "train nope=1": "nope",
    "train reward=nope": "nope",
    "train hydra.run.dir=/x": "hydra.run.dir",
    "train hydra.job.chdir=true": "hydra.job.chdir",
    "eval r --shapes 64_64_64": "shapes=64_64_64",
    "search 64_64_64 --target sm_90a run=x": "target=sm_90a",
    "bench kernel k.cu --problem 64_64_64": "problem=64_64_64",
    "train -m seed=0,1 hydra/launcher=nope run=r": "nope",
}
"""Command lines that end with exit code 2 and one line, which holds these words; nothing is left behind."""


def cudal2(words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "cudal2.cli", *shlex.split(words)]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, env=os.environ | {"PYTHONPATH": path})


def value(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


@pytest.mark.parametrize("words", SHOWN)
def test_what_a_run_would_use_is_shown(words: str, tmp_path: Path) -> None:
    done = cudal2(f"train --cfg job {words}", tmp_path)
    key, wanted = SHOWN[words]
    assert done.returncode == 0, done.stderr
    assert value(yaml.safe_load(done.stdout), key) == wanted
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["search shapes=64_64_64 --cfg job", "search --cfg job shapes=64_64_64"])
def test_a_flags_value_is_no_problem(words: str, tmp_path: Path) -> None:
    done = cudal2(words, tmp_path)
    assert done.returncode == 0 and value(yaml.safe_load(done.stdout), "shapes.names") == ["64_64_64"], done.stderr


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_told_in_one_line(words: str, tmp_path: Path) -> None:
    done = cudal2(words, tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert REFUSED[words] in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["train --help", "train --info defaults", "train experiment=smoke --cfg hydra"])
def test_help_and_info_show_where_a_configuration_comes_from(words: str, tmp_path: Path) -> None:
    done = cudal2(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "reward" in done.stdout or "hydra" in done.stdout
    assert not list(tmp_path.iterdir())
