"""Matrix products by kernels that were measured to be faster than torch's, on the device that they were measured on.

import cudal2_kernels
cudal2_kernels.linear(x, weight)     # F.linear, by a kernel where one is faster; matmul(a, b) is torch.matmul
cudal2_kernels.patch(model)          # every half-precision nn.Linear of a model that some kernel is for
torch.ops.cudal2.linear(x, weight)   # the same as an operator of torch's; torch.compile keeps it

Hugging Face's `kernels` finds the layers in `layers`; `serves` is the condition to give it for nn.Linear.

On another device, and where a file is damaged, one warning says so and torch serves every call.
"""

import warnings
from pathlib import Path
from types import SimpleNamespace

import torch

from . import op
from . import patch as _patch
from .held import Unusable
from .library import Library

_HERE = Path(__file__).parent
_FOLDER = _HERE / "export" if (_HERE / "export").exists() else _HERE.parent


def _load() -> Library | None:
    try:
        found = Library(_FOLDER)
    except (Unusable, ValueError) as error:
        warnings.warn(f"cudal2_kernels: {error}; torch serves every call", stacklevel=4)
        op.stand_in()
        return None
    if found.reason:
        warnings.warn(f"cudal2_kernels: {found.reason}; torch serves every call", stacklevel=4)
    return found


library = _load()
"""The kernels in sums of fp32 precision: `library.calls` counts who served which call, and why. None where they cannot
be used at all."""
linear = torch.nn.functional.linear if library is None else library.linear
matmul = torch.matmul if library is None else library.matmul
unpatch = _patch.unpatch


def patch(model: torch.nn.Module) -> list[str]:
    """Route every half-precision nn.Linear in `model` that some kernel is for, in place; the names of the layers."""
    return [] if library is None else _patch.patch(model, library)


def serves(module: torch.nn.Module) -> bool:
    """Whether it is an nn.Linear itself, no subclass, in fp16 or bf16, and some kernel is for its sizes."""
    return library is not None and _patch.serves(module, library)


def register() -> None:
    """vLLM's plug-in: its linear layers by these kernels (`patch.py`)."""
    if library is not None and not library.reason:
        _patch.route(library)


class Linear(torch.nn.Module):
    """What `kernels` gives an nn.Linear for its forward: without a state of its own, for inference."""

    can_torch_compile = True
    has_backward = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(input, self.weight, self.bias)  # type: ignore[arg-type]


layers = SimpleNamespace(Linear=Linear)
