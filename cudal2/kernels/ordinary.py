"""Whether a product is all that torch would make of a call, as a kernel on bare addresses takes for granted.

Between a function of torch's and its kernel lies the dispatcher: each transform, mode and kind of tensor with a
meaning of its own (autocast, vmap, tracing, a lazy negation, no memory, sparse) holds a key there, and what holds the
highest key comes first. `op.cpp` answers at those keys. The few things without a key are asked for here, one by one.
"""

import torch
from torch.autograd import forward_ad

_has_torch_function = torch.overrides.has_torch_function
_deterministic = torch.are_deterministic_algorithms_enabled
_grad_enabled = torch.is_grad_enabled


def unusual(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> str:
    """What torch has to see to in a call with these tensors besides a product of matrices, or nothing.

    Raises AttributeError where one is no tensor.
    """
    # First of all: any other question about a tensor may itself be a call that a subclass or a mode sees.
    if _has_torch_function((a, b, bias)):
        return "a mode sees every function"
    if _deterministic():
        return "deterministic algorithms are wanted"
    if forward_ad._current_level >= 0:
        for tensor in (a, b, bias):
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                return "tangents are wanted"
    if _grad_enabled() and (b.requires_grad or a.requires_grad or (bias is not None and bias.requires_grad)):
        return "gradients are wanted"
    return ""
