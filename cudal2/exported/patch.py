"""Routes the linear layers of a model, or of vLLM, through a library of exported kernels.

The wheel of an export declares `register` in vLLM's group of plug-ins, so that vLLM calls it in each of its processes.
Layers without quantisation whose sizes some kernel is for call torch.ops.cudal2.linear, which vLLM's compilation keeps;
how many rows there are decides at each call whether a kernel or torch serves. All other layers stay as they are. On a
processor vLLM packs weights for a library of its own; those of our layers it leaves alone.
"""

import hashlib
import warnings
from copy import deepcopy
from functools import wraps
from typing import Any

import torch

from .library import Library


class Routed(torch.nn.Linear):
    """The class that `patch` gives to a layer. (A new `forward` on the layer itself would, in a copy, still be bound to
    the old layer.)"""

    library: Library
    rows: frozenset[int]
    __jit_ignored_attributes__ = ("library", "rows")  # a script holds only torch's own functions

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.linear(input, self.weight, self.bias)
        # Calls that no kernel serves must not cost more than before.
        elif torch.compiler.is_dynamo_compiling() or input.numel() // self.in_features in self.rows:
            return self.library.linear(input, self.weight, self.bias)
        else:
            return torch.nn.functional.linear(input, self.weight, self.bias)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain layers, since the process that loads them may not have the library."""
        if type(self) is not Routed:  # torch has its own words for why such a layer cannot be pickled
            return super().__reduce_ex__(protocol)
        return torch.nn.Linear.__new__, (torch.nn.Linear,), _state(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Linear:
        return _copied(self, memo)


def _state(layer: torch.nn.Module) -> dict[str, Any]:
    """What a layer holds, but for what `patch` gave it."""
    return {name: value for name, value in layer.__dict__.items() if name not in Routed.__jit_ignored_attributes__}


def _copied(layer: Any, memo: dict[int, Any]) -> Any:
    """A plain layer with copies of all that this one holds."""
    kind = _plain(type(layer))
    memo[id(layer)] = copy = kind.__new__(kind)
    copy.__dict__ = deepcopy(_state(layer), memo)
    return copy


def _plain(kind: Any) -> Any:
    """The class with nn.Linear in the place of Routed. A layer with a parametrization is of a class of its own, which
    torch derives from the one that the layer had before."""
    if kind is Routed:
        return torch.nn.Linear
    if not issubclass(kind, Routed):
        return kind
    # torch gives such a class a copy of its own only where the class before has none, and Routed has one.
    return type(kind)(kind.__name__, tuple(map(_plain, kind.__bases__)), {"__deepcopy__": _copied, **vars(kind)})


def patch(model: torch.nn.Module, library: Library) -> list[str]:
    """Routes every nn.Linear in fp16 or bf16 in `model` that `library` has kernels for through it, in place.

    A layer with a bias is one whose bias a kernel adds; on a processor, if there is none, one whose product a kernel
    gives.

    Returns the names of these layers. Weights and state dict do not change, and results only by rounding, as sums are
    taken in another order. `unpatch` undoes it; copies and pickles of the layers are plain.
    Subclasses of nn.Linear keep their own forward, and so does a layer whose forward was replaced.
    """
    routed = []
    for name, module in model.named_modules():
        if "forward" in module.__dict__:
            continue
        _restore(module)
        if type(module) is torch.nn.Linear and (rows := library.rows(module)):
            module.__class__ = Routed
            module.__dict__.update(library=library, rows=rows)
            routed.append(name)
    return routed


def serves(module: torch.nn.Module, library: Library) -> bool:
    """Whether it is an nn.Linear itself, no subclass, in fp16 or bf16, and the library has kernels for its sizes."""
    return type(module) is torch.nn.Linear and bool(library.rows(module))


def unpatch(model: torch.nn.Module) -> None:
    """Makes every layer that `patch` routed a plain nn.Linear again."""
    for module in model.modules():
        if "forward" not in module.__dict__:
            _restore(module)


def _restore(module: torch.nn.Module) -> None:
    if isinstance(module, Routed):
        object.__setattr__(module, "__class__", _plain(type(module)))
        for name in Routed.__jit_ignored_attributes__:
            del module.__dict__[name]


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
        text = f"cudal2_kernels: this vLLM is not known ({error}); it computes as without us. Install vllm 0.27 to 0.31"
        warnings.warn(text, stacklevel=2)
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
