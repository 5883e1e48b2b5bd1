"""Sampling from a model with adapters as if they were merged: each adds a dozen small operations to each layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers.integrations import is_deepspeed_zero3_enabled

from cudal2.train.sharded import merged


@contextmanager
def as_merged(model: Any) -> Iterator[None]:
    """While it lasts, the adapters in `model` are merged into its weights, which come back as they were, to the bit.

    So what is sampled is what evaluations will sample of the checkpoint. It is not quite what is trained, for merged
    weights in bfloat16 are rounded: some 1e-5 nats a token, which nothing corrects. They lie beside the others: where
    they would take a quarter of the GPU's memory, or DeepSpeed shards the weights, nothing is merged.
    """
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    if is_deepspeed_zero3_enabled() or not _fits(layers):
        layers = []
    kept = [layer.get_base_layer().weight.data for layer in layers]
    try:
        for layer, weight in zip(layers, kept):
            layer.get_base_layer().weight.data = merged(weight, layer)
            layer.merged_adapters.extend(layer.active_adapters)
        yield
    finally:
        for layer, weight in zip(layers, kept):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()


def _fits(layers: list[Any]) -> bool:
    weights = [layer.get_base_layer().weight for layer in layers]
    if not weights or weights[0].device.type != "cuda":
        return True
    return 4 * sum(one.nbytes for one in weights) < torch.cuda.get_device_properties(weights[0].device).total_memory
