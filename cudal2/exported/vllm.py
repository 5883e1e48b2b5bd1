"""vLLM's linear layers by the kernels of an export: its wheel declares `register` in vLLM's group of plug-ins, so that
vLLM calls it in each of its processes.

Layers without quantisation whose sizes some kernel is for call torch.ops.cudal2.linear, which vLLM's compilation keeps;
how many rows there are decides at each call whether a kernel or torch serves. All other layers stay as they are. On a
processor vLLM packs weights for a library of its own; those of our layers it leaves alone.
"""

import hashlib
import warnings
from functools import wraps
from typing import Any

import torch

from .library import Library

layers: list[str] = []
"""The weights' sizes of the layers of this process that call the operator, in the order in which they were loaded."""


def route(library: Library) -> None:
    """Lets every linear layer that vLLM loads from now on look for its kernels in `library`; at most once in a process.

    A vLLM that has no such layers is left alone, with a warning in one line.
    """
    try:
        from vllm.config import VllmConfig
        from vllm.model_executor.layers import linear, utils

        method, plain = linear.UnquantizedLinearMethod, {utils.default_unquantized_gemm, utils.cpu_unquantized_gemm}
        loaded, hashed = method.process_weights_after_loading, VllmConfig.compute_hash
    except (ImportError, AttributeError) as error:
        told = f"cudal2_kernels: this vLLM is not known ({error}); it computes as without us. Install vllm 0.27 to 0.31"
        warnings.warn(told, stacklevel=2)
        return
    if hasattr(loaded, "__wrapped__"):
        return

    @wraps(loaded)
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        if getattr(self, "_gemm_impl", None) not in plain or not _served(layer, library):
            return loaded(self, layer)
        self._gemm_impl = _product
        layer.cpu_linear = torch.nn.functional.linear  # for whoever takes it from the layer
        layers.append("_".join(map(str, layer.weight.shape)))

    @wraps(hashed)
    def compute_hash(self: Any) -> str:
        """What vLLM has compiled is kept by this; which layers are ours depends on the export."""
        return hashlib.sha256(f"{hashed(self)} {library.id}".encode()).hexdigest()[:10]

    method.process_weights_after_loading, VllmConfig.compute_hash = process_weights_after_loading, compute_hash


def _product(layer: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.cudal2.linear(x, weight, bias)


def _served(layer: Any, library: Library) -> bool:
    """`skip_bias_add` leaves the bias to the caller; either way the operator does what it is asked."""
    weight = layer.weight
    return weight.dim() == 2 and not weight.is_meta and bool(library.rows(layer))
