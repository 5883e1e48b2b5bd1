"""The referee's buffers in ordinary memory."""

import numpy as np
import pytest
import torch
from fake_gpu import PROBLEM, FakeVendor
from msgspec.structs import replace

from cudal2 import operators
from cudal2.config import WorkerConfig
from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker import inputs
from cudal2.worker.cuda.pairing import TimingContext
from cudal2.worker.cuda.vendor.side import BaselineSide
from cudal2.worker.gpu import buffers
from cudal2.worker.gpu.arena import Arena


@pytest.fixture
def context(monkeypatch, request) -> TimingContext:
    """Of PROBLEM, or of the problem that a test names as the fixture's parameter."""
    return context_of(7, getattr(request, "param", PROBLEM), monkeypatch)


@pytest.fixture
def many_sets(monkeypatch) -> TimingContext:
    """For what chance decides in windows of few calls, and not in those of many, as most kernels have."""
    return context_of(40, PROBLEM, monkeypatch)


def context_of(sets: int, problem: Problem, monkeypatch) -> TimingContext:
    monkeypatch.setattr(buffers, "CUDA_CONTRACT", replace(CUDA_CONTRACT, workspace_limit=64 << 10))
    monkeypatch.setattr(buffers, "GRANULE", 4096)
    layout = buffers.buffer_layout(problem, rotated=operators.nbytes(problem) * sets)
    memory = torch.zeros(layout.bytes // 2, dtype=torch.int16)
    arena = Arena(layout, memory, inputs.generator())
    baseline = BaselineSide(
        FakeVendor(),  # type: ignore[arg-type]
        layout,
        arena.given,
        arena.reference,
        originals=arena.inputs,
    )
    return TimingContext(arena, baseline, WorkerConfig(), np.random.default_rng(), 16, baseline.vendor.touch_seconds)
