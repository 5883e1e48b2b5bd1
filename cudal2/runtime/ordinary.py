"""Whether a product is all that torch would make of a call, as a kernel on bare addresses takes for granted.

Between a function of torch's and its kernel lies the dispatcher: each transform, mode and kind of tensor with a
meaning of its own (autocast, vmap, tracing, a lazy negation, no memory, sparse) holds a key there, and what holds the
highest key comes first. So no list of them is kept here: a call is ordinary where no key is held but those of a
dense tensor on a device. The few things without a key, as forward-mode tangents, are asked for one by one.
"""

import functools
import operator

import torch
from torch._C import DispatchKey, DispatchKeySet, _dispatch_keys
from torch._C import _dispatch_tls_local_exclude_set as _switched_off
from torch._C import _dispatch_tls_local_include_set as _switched_on
from torch.autograd import forward_ad

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_KEYS = (
    *(DispatchKey.CPU, DispatchKey.CUDA, DispatchKey.BackendSelect),
    # Of no effect without gradients, which are asked for apart.
    *(DispatchKey.AutogradCPU, DispatchKey.AutogradCUDA, DispatchKey.ADInplaceOrView),
)
_OTHERS = ~functools.reduce(operator.or_, (DispatchKeySet(key).raw_repr() for key in _KEYS))


def unusual(*tensors: torch.Tensor) -> str:
    """What torch has to see to in a call with these tensors besides a product of fp16 matrices, or nothing."""
    # First of all: any other question about a tensor may itself be a call that a subclass or a mode sees.
    for tensor in tensors:
        if type(tensor) not in _PLAIN:
            return "not a plain tensor"
    if torch.overrides.has_torch_function(tensors):
        return "a mode sees every function"
    keys = _switched_on().raw_repr()
    for tensor in tensors:
        keys |= _dispatch_keys(tensor).raw_repr()
    if extra := keys & _OTHERS & ~_switched_off().raw_repr():
        key = DispatchKeySet.from_raw_repr(extra).highestPriorityTypeId()
        return f"{torch._C._dispatch_key_name(key)} comes first"
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are wanted"
    differentiating, forward = torch.is_grad_enabled(), forward_ad._current_level >= 0
    for tensor in tensors:
        if tensor.dtype is not torch.float16:
            return "not float16"
        if differentiating and tensor.requires_grad:
            return "gradients are wanted"
        if forward and forward_ad.unpack_dual(tensor).tangent is not None:
            return "tangents are wanted"
    return ""
