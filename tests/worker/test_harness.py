"""Whatever decides a verdict is in the harness's digest, and nothing else is."""

import shutil
from pathlib import Path

import pytest

from cudal2.worker import harness


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package. Whoever changes it puts it back."""
    folder = tmp_path_factory.mktemp("package") / "cudal2"
    return shutil.copytree(
        harness.PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "policy", "search", "data")
    )


@pytest.fixture(scope="module")
def before(package: Path) -> str:
    return harness.fingerprint(package)


@pytest.mark.parametrize(
    "name",
    [
        *("source.py", "target.py", "arch.py", "contract.py", "records.py", "problem.py"),
        *("config/worker.py", "kernels/processor.py", "__init__.py"),
        *("worker/verify.py", "worker/cpu/runner.cpp", "worker/cuda/programs/driver.h"),
        "worker/cuda/compile/shim/ATen/ATen.h",
    ],
)
def test_what_decides_a_verdict_changes_the_digest(package: Path, before: str, name: str) -> None:
    """The source check's refusals, the target's flags: they are cached under it."""
    was = (package / name).read_bytes()
    (package / name).write_bytes(was + b"\n")
    after = harness.fingerprint(package)
    (package / name).write_bytes(was)
    assert after != before


def test_a_new_file_and_another_name_change_it_and_what_no_verdict_needs_does_not(package: Path, before: str) -> None:
    for name in ("report.py", "train/rewards.py", "worker/__pycache__/verify.pyc"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_bytes(b"\n")
    assert harness.fingerprint(package) == before
    (package / "worker" / "new.h").touch()
    after = harness.fingerprint(package)
    (package / "worker" / "new.h").rename(package / "worker" / "newer.h")
    assert len({before, after, harness.fingerprint(package)}) == 3
