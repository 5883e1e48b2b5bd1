"""Shared by all tests: none asks a network or a login for anything, and those side by side share the processors.

Under pytest-xdist a test marked `alone`, or on the GPU, has the machine to itself, and torch takes one thread where
nobody asks it for more: threads of several tests on the same cores would spend their time waiting for each other.
Workers of different tests have their scratch folders apart, and the locks in them: builds of one test need not wait
until another has timed its kernels, for no test but those is decided by a time.
Of a test marked `sampled(n)` every nth case is tried with the fast ones and the others with the slow ones.
The longest files begin first, lest the last one be waited for (`--no-loadscope-reorder` leaves the order as it is).
"""

import fcntl
import gc
import os
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import TextIO

import pytest

BESIDE_OTHERS = "PYTEST_XDIST_WORKER" in os.environ
ALONE = ("alone", "gpu") if Path("/dev/nvidiactl").exists() else ("alone",)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if BESIDE_OTHERS:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TMPDIR"] = f"{tempfile.gettempdir()}/cudal2-{os.getuid()}-{os.environ['PYTEST_XDIST_WORKER']}"
    Path(os.environ["TMPDIR"]).mkdir(mode=0o755, exist_ok=True)
    tempfile.tempdir = None  # asks again

pytest.register_assert_rewrite("families.contract")  # its assertions explain themselves too


LONGEST = (
    *("worker/test_attacks.py", "worker/cuda/test_attacks.py", "families/test_sm_90a_emulated.py", "test_corpus.py"),
    *("train/test_processes.py", "worker/pool/test_cluster.py", "test_interrupt.py", "test_disk.py"),
    *("test_plain_install.py", "test_multirun.py", "test_campaign.py", "test_every_kind.py", "test_killed.py"),
    *("serving/test_restart.py", "serving/test_openenv.py", "integrations/test_verifiers.py"),
    *("worker/test_worker.py", "worker/cuda/compile/test_build.py", "families/test_sm_80.py"),
    *("worker/cuda/compile/test_gate.py", "train/test_grpo.py", "sass/test_dependence.py", "sass/test_mutation.py"),
    *("train/test_options.py", "policy/test_endpoint_asked.py", "worker/cuda/compile/test_abi.py"),
    *("families/test_sm_90a.py", "test_config.py", "train/sft/test_examples.py", "worker/pool/test_pool.py"),
)
"""Files that take ten seconds or more, the longest first; those with tests that run alone before all others."""

_locks: list[TextIO] = []
"""What this process holds of the machine."""


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves any out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % sampled.args[0]:
                item.add_marker("slow")
            seen[test] += 1
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make a million objects that stay to the end: no search for garbage, then or later, passes over them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _alone(item: pytest.Item | None) -> bool:
    return item is not None and any(item.get_closest_marker(name) for name in ALONE)


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request: pytest.FixtureRequest) -> str:
    """A jail, each in turn."""
    from cudal2.worker.sandbox import jail

    if not jail.works(request.param):
        pytest.skip(f"{request.param} does not work on this machine")
    return request.param


@pytest.fixture(autouse=True)
def processors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Holds the machine while a test runs: alone, or together with those that may run beside others."""
    if BESIDE_OTHERS and not _locks:
        common = tmp_path_factory.getbasetemp().parent
        _locks[:] = ((common / f"{name}.lock").open("a") for name in ("queue", "processors"))
        queue, held = _locks
        fcntl.flock(queue, fcntl.LOCK_EX)  # who waits to be alone is overtaken by nobody
        fcntl.flock(held, fcntl.LOCK_EX if _alone(request.node) else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Those that run alone one after the other hold the machine throughout: each would wait for the others' tests."""
    result = yield
    if not (_alone(item) and _alone(nextitem)):
        while _locks:
            _locks.pop().close()
    return result
