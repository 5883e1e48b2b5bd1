"""Whether a call is a plain product, so that a kernel that gets only addresses gives the same result as torch.

torch's dispatcher calls a function by keys: each transform, mode and special kind of tensor (autocast, vmap, tracing,
lazy negation, meta, sparse) has a key, and the highest key comes first. `op.cpp` handles these keys. The few
cases without a key are checked here, one by one.
"""

import torch
from torch.autograd import forward_ad

_has_torch_function = torch.overrides.has_torch_function
_deterministic = torch.are_deterministic_algorithms_enabled
_grad_enabled = torch.is_grad_enabled


def unusual(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> str:
    """What makes a call with these tensors more than a plain product; "" where nothing does.

    Raises AttributeError where one is no tensor.
    """
    # This comes first: any other question about a tensor may itself be a call that a subclass or a mode handles.
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
