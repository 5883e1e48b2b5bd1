"""The referee's buffers in ordinary memory."""

import numpy as np
import pytest
import torch
from fake_gpu import PROBLEM, FakeVendor
from msgspec.structs import replace

from cudal2.config import WorkerConfig
from cudal2.contract import CUDA_CONTRACT
from cudal2.worker import inputs
from cudal2.worker.cuda import layout as layout_module
from cudal2.worker.cuda.arena import Arena
from cudal2.worker.cuda.layout import layout
from cudal2.worker.cuda.pairing import Stage, VendorSide


@pytest.fixture
def stage(monkeypatch) -> Stage:
    monkeypatch.setattr(layout_module, "CUDA_CONTRACT", replace(CUDA_CONTRACT, workspace_limit=64 << 10))
    monkeypatch.setattr(layout_module, "GRANULE", 4096)
    place = layout(PROBLEM, rotated=PROBLEM.bytes * 7)
    memory = torch.zeros(place.bytes // 2, dtype=torch.int16)
    arena = Arena(place, memory, inputs.generator())
    vendor = VendorSide(FakeVendor(), place, *arena.inputs, arena.reference)  # type: ignore[arg-type]
    return Stage(arena, vendor, WorkerConfig(), np.random.default_rng(), 16)
