"""Whatever decides a verdict is in the harness's digest, and nothing else is."""

import shutil
from pathlib import Path

import pytest

from cudal2.worker import harness


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return shutil.copytree(
        harness.PACKAGE, tmp_path / "cudal2", ignore=shutil.ignore_patterns("__pycache__", "policy", "search", "data")
    )


@pytest.mark.parametrize(
    "name",
    [
        *("source.py", "target.py", "arch.py", "contract.py", "records.py", "problem.py"),
        *("config/worker.py", "processor.py", "__init__.py"),
        *("worker/verify.py", "worker/cpu/runner.cpp", "worker/cuda/driver.h", "worker/cuda/compile/shim/ATen/ATen.h"),
    ],
)
def test_what_decides_a_verdict_changes_the_digest(package: Path, name: str) -> None:
    """The source check's refusals, the target's flags: they are cached under it."""
    before = harness.fingerprint(package)
    (package / name).write_bytes((package / name).read_bytes() + b"\n")
    assert harness.fingerprint(package) != before


def test_a_new_file_and_another_name_change_it_and_what_no_verdict_needs_does_not(package: Path) -> None:
    before = harness.fingerprint(package)
    for name in ("report.py", "train/rewards.py", "worker/__pycache__/verify.pyc"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(b"\n")
    assert harness.fingerprint(package) == before
    (package / "worker" / "new.h").touch()
    after = harness.fingerprint(package)
    (package / "worker" / "new.h").rename(package / "worker" / "newer.h")
    assert len({before, after, harness.fingerprint(package)}) == 3
