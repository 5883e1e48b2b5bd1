"""Routes the linear layers of a model through a library of exported kernels."""

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

    def __reduce_ex__(self, protocol: Any) -> tuple:
        """Copies and pickles are plain layers, since the process that loads them may not have the library."""
        state = {name: value for name, value in self.__dict__.items() if name not in self.__jit_ignored_attributes__}
        return torch.nn.Linear.__new__, (torch.nn.Linear,), state


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
        plain = type(module) in (torch.nn.Linear, Routed) and "forward" not in module.__dict__
        if not plain:
            continue
        _restore(module)
        if rows := library.rows(module):
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
    if type(module) is Routed:
        object.__setattr__(module, "__class__", torch.nn.Linear)
        for name in Routed.__jit_ignored_attributes__:
            del module.__dict__[name]
