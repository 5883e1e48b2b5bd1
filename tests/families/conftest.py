"""The target of the GPU that is here."""

import pytest

from cudal2.records import HarnessFault
from cudal2.target import Target
from cudal2.worker.cuda import device


@pytest.fixture(scope="module")
def target() -> Target:
    try:
        return device.find().target
    except HarnessFault as fault:
        pytest.skip(str(fault))
