"""LoRA adapters (arXiv:2106.09685) by PEFT: small matrices added to a model's own, in a folder that names the model.

For sampling they are merged: each adds a dozen small operations to each layer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLora
from peft import PeftConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel, set_seed
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import find_adapter_config_file

from cudal2.config import LoraConfig

Gather = Callable[[list[Parameter]], AbstractContextManager]
"""A context manager in which these sharded parameters are whole; every rank must enter it."""


def recorded(place: str) -> PeftLora | None:
    """The configuration of the adapters in a folder or under a hub name; None where there are none.

    Raises ValueError where they are not LoRA adapters, or name no base model.
    """
    local = Path(place).is_dir()
    if Path(place).is_file() or find_adapter_config_file(place, local_files_only=local) is None:
        return None
    try:
        record = PeftConfig.from_pretrained(place, local_files_only=local)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{place}/adapter_config.json cannot be read ({error}); save the adapters anew") from error
    if not isinstance(record, PeftLora):
        raise ValueError(f"{place} holds adapters of the kind {record.peft_type}; merge them into a model of their own")
    if not record.base_model_name_or_path:
        raise ValueError(f"{place} does not say whose adapters it holds; {how_to_name_the_base(place)}")
    return record


def how_to_name_the_base(place: str) -> str:
    """The remedy where adapters name a base model that is not there."""
    return f"write the folder or hub name of their model into {place}/adapter_config.json as base_model_name_or_path"


def new(model: PreTrainedModel, config: LoraConfig, seed: int) -> Any:
    """The model with new adapters, initialised from `seed`. Only they train, and at first they change no output."""
    set_seed(seed)
    wanted = PeftLora(
        task_type="CAUSAL_LM",
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear",
    )
    return get_peft_model(model, wanted, autocast_adapter_dtype=_in_float32())


def resume(model: PreTrainedModel, place: str, record: PeftLora, config: LoraConfig) -> Any:
    """The model with the adapters in `place`. Only they train, from their present values.

    Raises ValueError where their rank or alpha differs from `config`'s, or where they are more than the product of two
    matrices: while they train, they are merged for sampling, as such.
    """
    more = [name for name in ("use_dora", "lora_bias", "trainable_token_indices") if getattr(record, name, None)]
    if more:
        raise ValueError(
            f"{place} holds adapters with {', '.join(more)}, which cannot be trained on: set policy.lora.rank=0 to "
            "merge them and train every weight"
        )
    if (record.r, record.lora_alpha) != (config.rank, config.alpha):
        raise ValueError(
            f"{place} holds adapters of rank {record.r} and alpha {record.lora_alpha}, which go on as they are: set "
            f"policy.lora.rank={record.r} policy.lora.alpha={record.lora_alpha}, or policy.lora.rank=0 to merge them "
            "and train every weight"
        )
    record.lora_dropout = config.dropout
    record.base_model_name_or_path = model.name_or_path  # from here on as it was found here
    return _attach(model, place, config=record, is_trainable=True)


def merge(model: PreTrainedModel, place: str) -> PreTrainedModel:
    """The model with the adapters in `place` merged into its weights."""
    return _attach(model, place).merge_and_unload().requires_grad_(True)  # attaching had frozen them


def without(model: Any) -> Any:
    """The model that PEFT has wrapped, with the adapters still in its layers; itself where it is not wrapped."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def merged_weights(model: Any, gather: Gather) -> Iterator[tuple[str, Tensor]]:
    """The weights of PEFT's `model` with its adapters merged, one tensor at a time, named as without adapters.

    Only that tensor and its adapters are gathered at a time. TRL would gather the whole model on every GPU (65 GB for
    32B weights). It also merges adapters into bfloat16 weights in place and subtracts them again, which changes the
    weights a little at every step.
    """
    base = model.get_base_model()
    layers = {name: layer for name, layer in base.named_modules() if isinstance(layer, BaseTunerLayer)}
    for name, parameter in base.named_parameters():
        if model.prefix in name:
            continue
        owner, _, leaf = name.rpartition(".base_layer.")
        adapted = layers[owner] if owner and leaf == "weight" else None
        with gather([parameter, *_adapters(adapted, model.prefix)]):
            yield f"{owner}.{leaf}" if owner else name, _merged(parameter.data, adapted)


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
            layer.get_base_layer().weight.data = _merged(weight, layer)
            layer.merged_adapters.extend(layer.active_adapters)
        yield
    finally:
        for layer, weight in zip(layers, kept):
            layer.get_base_layer().weight.data = weight
            layer.merged_adapters.clear()


def _adapters(layer: Any, prefix: str) -> Iterable[Parameter]:
    return [] if layer is None else [own for name, own in layer.named_parameters() if name.startswith(prefix)]


@torch.no_grad()
def _merged(weight: Tensor, layer: Any) -> Tensor:
    """The weight with the adapters of `layer`, if any, added to it, in the type that it has."""
    merged = weight
    for adapter in layer.active_adapters if layer is not None else ():
        merged = merged + layer.get_delta_weight(adapter)
    return merged.to(weight.dtype)


def _fits(layers: list[Any]) -> bool:
    weights = [layer.get_base_layer().weight for layer in layers]
    if not weights or weights[0].device.type != "cuda":
        return True
    memory = torch.cuda.get_device_properties(weights[0].device).total_memory
    return 4 * sum(weight.nbytes for weight in weights) < memory


def _attach(model: PreTrainedModel, place: str, **options: Any) -> Any:
    local = Path(place).is_dir()
    try:
        return PeftModel.from_pretrained(
            model, place, local_files_only=local, autocast_adapter_dtype=_in_float32(), **options
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"the adapters in {place} do not fit {model.name_or_path} ({error}); {how_to_name_the_base(place)}"
        ) from error


def _in_float32() -> bool:
    """Whether adapters are kept in float32 beside a bfloat16 model. Not with ZeRO-3, which gathers weights of one type
    only and keeps its own float32 copy of the trained ones."""
    return not is_deepspeed_zero3_enabled()
