"""What a machine lacks for a policy is one line with what to lower or install."""

import re

import fakes
import pytest
import torch

from cudal2.config import TrainConfig, load
from cudal2.policy import model
from cudal2.policy.memory import ADAPTERS, SHARED, TRAINED, hint
from cudal2.train import grpo


class MissingCUDAException(Exception):
    """As DeepSpeed names it."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), "too large.*20 GiB.*micro_batch"),
        (MemoryError(), "too large.*no memory is left.*lora"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory:\n you tried"), "too large.*you tried.*zero3"),
        (RuntimeError("Error building extension 'cpu_adam': ninja\nfatal error"), "cpu_adam.*CUDA_HOME"),
        (RuntimeError("Unable to JIT load the cpu_adam op"), "cpu_adam.*CUDA_HOME"),
        (MissingCUDAException("CUDA_HOME does not exist"), "compile.*CUDA_HOME"),
    ],
)
def test_it_is_told_in_one_line(error, said):
    with pytest.raises(ValueError, match=said) as found, hint(TRAINED, ADAPTERS, SHARED):
        raise error
    assert "\n" not in str(found.value) and found.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), KeyboardInterrupt(), KeyError("DeepSpeed")])
def test_all_else_is_left_as_it_is(error):
    with pytest.raises(type(error)) as found, hint(TRAINED):
        raise error
    assert found.value is error


def test_a_model_that_memory_does_not_hold(tmp_path, monkeypatch):
    """By torch's own allocator: no machine has 2⁵⁰ bytes."""
    monkeypatch.setattr(grpo, "Pool", fakes.FakePool)
    policy = fakes.save_policy(tmp_path / "policy")
    monkeypatch.setattr(model.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: torch.empty(1 << 50))
    with pytest.raises(ValueError, match=re.escape("trainer.micro_batch")):
        grpo.run(load("train", fakes.tiny(tmp_path / "run", policy), TrainConfig))
    with pytest.raises(ValueError, match=re.escape("policy.dtype=bfloat16")):
        model.load(load("train", fakes.tiny(tmp_path / "run", policy), TrainConfig).policy)
