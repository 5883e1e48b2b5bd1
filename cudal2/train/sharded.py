"""Training a policy that does not fit into one GPU: DeepSpeed's ZeRO-3 shards every weight over all of them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from torch.nn import Parameter

from cudal2.assets import asset

Gather = Callable[[list[Parameter]], AbstractContextManager]
"""A context manager in which these sharded parameters are whole; every rank must enter it."""


def deepspeed_file(name: str) -> str | None:
    """The file that `trainer.deepspeed` names: one that ships (zero2, zero3) or a path; None for "".

    Raises ValueError where there is no such file.
    """
    shipped = {path.stem: path for path in asset("conf", "deepspeed").glob("*.json")}
    path = shipped.get(name, Path(name).expanduser())
    if name and not path.is_file():
        raise ValueError(f"trainer.deepspeed={name} is no file; name one, or choose one of {', '.join(shipped)}")
    return str(path) if name else None


def connect() -> None:
    """Connects DeepSpeed to the process group of accelerate. On processors nothing else does, and DeepSpeed would shard
    the weights being loaded as if each process were alone."""
    from deepspeed import comm

    if not comm.is_initialized():
        comm.init_distributed(auto_mpi_discovery=False, verbose=False)


def check_shares(checkpoint: Path | None, processes: int) -> None:
    """Raises ValueError where DeepSpeed saved the checkpoint with another number of processes."""
    shares = len(list(checkpoint.glob("global_step*/*_optim_states.pt"))) if checkpoint else 0
    if shares not in (0, processes):
        raise ValueError(
            f"{checkpoint} was saved by {shares} processes, each with a share of it, and goes on with as many: "
            f"torchrun --nproc_per_node {shares} -m cudal2.cli train …"
        )


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
            yield f"{owner}.{leaf}" if owner else name, merged(parameter.data, adapted)


def _adapters(layer: Any, prefix: str) -> Iterable[Parameter]:
    return [] if layer is None else [own for name, own in layer.named_parameters() if name.startswith(prefix)]


@torch.no_grad()
def merged(weight: Tensor, layer: Any) -> Tensor:
    """The weight with the adapters of `layer`, if any, added to it, in the type that it has."""
    merged = weight
    for adapter in layer.active_adapters if layer is not None else ():
        merged = merged + layer.get_delta_weight(adapter)
    return merged.to(weight.dtype)
