"""A worker in a hurry, for tests that look at verdicts and not at figures."""

import msgspec
import pytest

from cudal2.config import WorkerConfig


@pytest.fixture
def hasty(tmp_path) -> WorkerConfig:
    """Few, short measurements on one thread, for other tests have the other cores, and a cache of its own."""
    return WorkerConfig(
        cache=str(tmp_path / "cache"),
        threads=1,
        compile_seconds=20,
        run_seconds=10,
        timing_seconds=0.1,
        batch_ms=2,
        min_pairs=3,
        disturbed=1e3,
    )


@pytest.fixture
def checking(hasty) -> WorkerConfig:
    """Nothing is measured, so that no process for the baselines is started."""
    return msgspec.structs.replace(hasty, protocols=())
