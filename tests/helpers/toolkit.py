"""What tests that compile CUDA sources need of the machine."""

import pytest

from cudal2.records import HarnessFault
from cudal2.worker.cuda.compile import toolchain


def needs_toolkit() -> None:
    """Skips where there is no CUDA compiler or no disassembler."""
    try:
        toolchain.find()
    except HarnessFault as fault:
        pytest.skip(str(fault))
    if toolchain.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
