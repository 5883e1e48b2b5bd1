"""Shared by all tests: none asks a network or a login for anything, and those side by side share the processors.

Under pytest-xdist a test marked `alone`, or on the GPU, has the machine to itself, and torch takes one thread where
nobody asks it for more: threads of several tests on the same cores would spend their time waiting for each other.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ
ALONE = ("alone", "gpu") if Path("/dev/nvidiactl").exists() else ("alone",)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
if BESIDE_OTHERS:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("families.contract")  # its assertions explain themselves too


@pytest.fixture(autouse=True)
def processors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Holds the machine while a test runs: alone, or together with those that may run beside others."""
    if not BESIDE_OTHERS:
        yield
        return
    common = tmp_path_factory.getbasetemp().parent
    alone = any(request.node.get_closest_marker(name) for name in ALONE)
    with (common / "queue.lock").open("a") as queue, (common / "processors.lock").open("a") as held:
        fcntl.flock(queue, fcntl.LOCK_EX)  # who waits to be alone is overtaken by nobody
        fcntl.flock(held, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield
