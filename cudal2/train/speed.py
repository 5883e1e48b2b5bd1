"""What makes training on long rows fast: attention without a mask, and small operations that are fused."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.modeling_layers import GradientCheckpointingLayer

from cudal2.policy import adapters

ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""torch's choice on Hopper would be cuDNN's, which takes 30 ms to plan for each length that it has not seen."""


def attention() -> AbstractContextManager:
    """While it lasts, attention is one of `ATTENTION`. Updates need it as well where layers are computed again."""
    return sdpa_kernel(ATTENTION)


@contextmanager
def unmasked(model: Any) -> Iterator[None]:
    """While it lasts, `model` reads padded rows without a mask, which would cost attention its fast kernels.

    Each text is moved to the beginning of its row, so that all padding is behind it, where causal attention never
    looks. What the model says of a token is moved back to the token's place.
    """
    backbone = adapters.without(model).base_model
    padding: list[Tensor] = []

    def before(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        padding.clear()
        mask = named.pop("attention_mask", None)
        if mask is not None:
            padding.append((mask.cumsum(-1) == 0).sum(-1, keepdim=True))
            named["input_ids"] = named["input_ids"].gather(1, _moved(mask.shape[1], padding[0]))
        return given, named

    def after(_: Any, given: tuple[Any, ...], output: Any) -> Any:
        for here in padding:
            hidden = output.last_hidden_state
            places = _moved(hidden.shape[1], -here)[:, :, None].expand_as(hidden)
            output.last_hidden_state = hidden.gather(1, places)
        return output

    hooks = [
        backbone.register_forward_pre_hook(before, with_kwargs=True),
        backbone.register_forward_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _moved(length: int, by: Tensor) -> Tensor:
    """The places (rows, length) that come to each place where rows are moved to the left, around their end."""
    return (torch.arange(length, device=by.device) + by) % length


def fuse(model: Any) -> None:
    """Has each layer's small operations fused: they move more memory than the products. Where that is not possible,
    the layer runs as it is. All layers share what is compiled, for any length."""
    torch._dynamo.config.suppress_errors = True
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):  # what transformers calls a layer of a model
            module.compile(dynamic=True)
