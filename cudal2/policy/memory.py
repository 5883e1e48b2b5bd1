"""What fits into a machine's memory: the largest batch of texts, and what to say where a policy is too large.

A lack of memory or of a compiler becomes a ValueError that says what to change.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

SAMPLED = "set policy.dtype=bfloat16, lower policy.max_new_tokens, or take a smaller model"
TUNED = "lower tuning.micro_batch (batch_size of a kernel LM) or context, set tuning.gradient_checkpointing=true"
TRAINED = "lower trainer.micro_batch or policy.max_new_tokens, set trainer.gradient_checkpointing=true"
ADAPTERS = "train adapters (policy.lora.rank=8 policy.dtype=bfloat16)"
SHARED = "start a process for each of several GPUs with trainer.deepspeed=zero3"

OPERATORS = (
    "on GPUs zero2 and zero3 need none; what offloads needs g++, ninja and, in CUDA_HOME, the CUDA toolkit that torch "
    "was built with; without a GPU one is needed, with g++, ninja and Python's headers (python3-dev)"
)
_FULL = ("DefaultCPUAllocator: ", "CUDA out of memory")
_UNBUILT = ("Error building extension", "Unable to JIT load", "Error compiling objects")
_NO_TOOLKIT = ("MissingCUDAException", "CUDAMismatchException")  # DeepSpeed's, which need not be installed


@contextmanager
def hint(*remedies: str) -> Iterator[None]:
    """Raises ValueError, with these remedies, where memory runs out inside, or where DeepSpeed cannot compile one of
    its operators on this machine."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(text in said for text in _FULL):
            why = f"the policy is too large for this machine ({said or 'no memory is left'})"
            raise ValueError(f"{why}; {', or '.join(remedies)}") from error
        if type(error).__name__ in _NO_TOOLKIT or any(text in said for text in _UNBUILT):
            raise ValueError(f"DeepSpeed cannot compile an operator ({said}); {OPERATORS}") from error
        raise


CACHE_BYTES = 8 << 30
"""Memory for keys and values, which limits the batch in transformers. On a GPU it is at least half of what the weights
leave of the total memory, not of the free memory: otherwise the samples would depend on what else is in memory."""
MOST = 512
"""The largest batch; larger ones are not faster per prompt."""


def at_once(model: PreTrainedModel, tokens: int) -> int:
    """The largest batch of texts with so many tokens each."""
    shape: Any = model.config.get_text_config()
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    each = 2 * shape.num_hidden_layers * heads * size * model.dtype.itemsize * tokens
    room = CACHE_BYTES
    if torch.cuda.is_available():
        room = max(room, (torch.cuda.get_device_properties().total_memory - model.get_memory_footprint()) // 2)
    return max(1, min(MOST, room // each))
