"""What tests of the runtime share."""

from ctypes import CFUNCTYPE, POINTER, c_int, c_int32, c_void_p
from types import SimpleNamespace

import gpu_export
import pytest
import torch

from cudal2.exported import cuda
from cudal2.exported.held import address, opened
from cudal2.runtime.manifest import read

STREAM = CFUNCTYPE(c_int, c_int32, POINTER(c_void_p))
KEPT = []
"""What tables hold the addresses of."""


@pytest.fixture(scope="session")
def gpu_folder(tmp_path_factory):
    """An export made on this machine's GPU."""
    return gpu_export.exported(tmp_path_factory.mktemp("gpu"))


@pytest.fixture
def gpu(monkeypatch, folder):
    """A machine with one H200 for the kernels in `folder`; its memory is the host's. `stream` and `capturing` may be
    set."""

    class Here(SimpleNamespace):
        capturing = property(None, lambda self, on: opened(folder, read(folder).launcher).capture(int(on)))

    here = Here(name="NVIDIA H200", multi_processor_count=132, stream=7)

    def tell(device, out):
        out[0] = here.stream
        return 0

    here.told = STREAM(tell)
    KEPT.append(here.told)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: here)
    monkeypatch.setattr(cuda, "current_stream", lambda: address(here.told))
    monkeypatch.setattr(cuda, "CUDA", 0)
    yield here
    here.capturing = False
