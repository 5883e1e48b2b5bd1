"""`pip install .` and nothing else: every verb starts in another folder, and what an extra brings is asked for.

The development tools bring packages of their own, so that an import which no declared dependency brings is not missed
among them. Here an environment has only what the wheel declares.
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERBS = (
    *("train", "sft", "pack", "unpack", "eval", "search", "campaign", "export", "report", "serve"),
    *("archive export", "archive import", "doctor"),
    *("sass list", "sass check", "sass play", "sass compare", "sass polish"),
    *("bench kernel", "bench baseline", "bench floor", "bench worker", "bench call", "bench aa"),
)
pytestmark = pytest.mark.slow


def told(*command: str | Path, cwd: Path, seconds: float = 900) -> subprocess.CompletedProcess[str]:
    """What a program says; nothing of this environment reaches it but where pip finds packages."""
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = list(map(str, command))
    return subprocess.run(words, cwd=cwd, env=keep, capture_output=True, text=True, timeout=seconds)


@pytest.fixture(scope="module")
def cudal2(tmp_path_factory) -> Path:
    """The command in an environment of its own, with the build of torch that is here: another may take gigabytes."""
    place = tmp_path_factory.mktemp("plain")
    found = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"  # with uv, which takes a third of pip's time
    asked = (found, f"PYTHON={sys.executable}", f"TORCH=torch=={version('torch')}")
    done = told("env", *asked, ROOT / ".ci/install", place / "venv", "plain", cwd=ROOT)
    if done.returncode and "onnection" in done.stderr + done.stdout:
        pytest.skip("pip reaches no index")
    assert done.returncode == 0, done.stderr
    return place / "venv/bin/cudal2"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_starts_in_another_folder(cudal2, tmp_path, verb) -> None:
    done = told(cudal2, *verb.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0 and "usage" in done.stdout and not done.stderr


def test_the_assembly_game_asks_for_its_extra_in_one_line(cudal2, tmp_path) -> None:
    (tmp_path / "kernel.cu").write_text('extern "C" int hgemm() { return 0; }\n')
    for verb in ("list", "check", "play", "compare"):
        done = told(cudal2, "sass", verb, "kernel.cu", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert 'pip install "cudal2[sass]"' in done.stderr


def test_a_run_is_trained_evaluated_exported_reported_and_packed(cudal2, tmp_path) -> None:
    """The smoke run cut down to one step; a machine on which nothing can be timed is no fault of the installation."""
    quick = "worker=quick", "worker.threads=1", "worker.disturbed=1000", f"worker.cache={tmp_path / 'cache'}"
    small = "trainer.steps=1", "trainer.problems_per_step=1", "trainer.group_size=2"
    done = told(cudal2, "train", "experiment=smoke", "run=run", *small, *quick, cwd=tmp_path)
    assert "No module named" not in done.stderr and "Traceback" not in done.stderr
    if "too busy to time" in done.stderr:
        pytest.skip("the machine is too busy to time kernels")
    assert done.returncode == 0, done.stderr
    for command in (
        ("eval", "run", "shapes=64_64_64", *quick),
        ("report", "run"),
        ("pack", "run", "parcel", "cache=cache"),
        ("unpack", "parcel", "again", "cache=other"),
    ):
        done = told(cudal2, *command, cwd=tmp_path)
        assert done.returncode == 0 or "too busy to time" in done.stderr, (command, done.stderr)
        assert "Traceback" not in done.stderr
    assert (tmp_path / "run/report.html").exists() and (tmp_path / "again/archive.sqlite").exists()
