"""What the tests of the assembly game share: two cubins, compiled and listed once."""

import os
from functools import cache

import pytest
from sass.cubins import compiled, listed

from cudal2.sass.listing import Listing
from cudal2.worker.cache import Cache


@pytest.fixture(scope="session")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Where all tests, and all processes of pytest-xdist, find what one of them compiled."""
    ours = tmp_path_factory.getbasetemp()
    return Cache((ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours) / "cubins")


@pytest.fixture(scope="session", params=["sm_80", "sm_90a"])
def code(request: pytest.FixtureRequest, cubins: Cache) -> bytes:
    """A cubin of a kernel of mma.sync, and of one with wgmma; neither is among those that the latencies are from."""
    return compiled(request.param, 80, cubins)


@pytest.fixture(scope="session")
def finished(code: bytes) -> Listing:
    """The longest kernel of the cubin as the compiler wrote it."""
    return longest(code)


@cache
def longest(code: bytes) -> Listing:
    return max(listed(code), key=lambda one: len(one.instructions))
