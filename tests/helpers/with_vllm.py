"""For tests that run vLLM itself, on a processor: in the test's own process, with a gigabyte for keys and values."""

import os
from importlib.util import find_spec

import pytest

MARKS = [
    pytest.mark.parts,
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here: make vllm"),
]
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
SMALL = ["policy.vllm.gpu_memory_utilization=0.05", "policy.max_new_tokens=200", "policy.dtype=float32"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(os.environ, name, value)
