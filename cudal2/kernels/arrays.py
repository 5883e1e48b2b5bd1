"""Products of NumPy's arrays on a processor, and of CuPy's on CuPy's current stream, by the same kernels.

torch sees the arrays without a copy, if a kernel can read them where they are. If no kernel serves a call, the arrays'
own library does.
"""

from typing import Any

import torch


def matmul(library: Any, a: Any, b: Any) -> Any:
    """The product of operands that no kernel took as they are: arrays by a kernel, else by torch or their library."""
    kinds = {_library(one) for one in (a, b)}
    if kinds == {"numpy"}:
        return _numpy(library, a, b)
    if kinds == {"cupy"}:
        return _cupy(library, a, b)
    return torch.matmul(a, b)


def _library(one: Any) -> str:
    """Whose array it is, one of a derived class too; neither library need be installed."""
    roots = (kind.__module__.split(".")[0] for kind in type(one).__mro__)
    return next((root for root in roots if root in ("numpy", "cupy")), "")


def _numpy(library: Any, a: Any, b: Any) -> Any:
    import numpy as np

    plain = (np.ndarray, np.memmap)  # other kinds mean more than their elements say: a mask, say
    if a.dtype == b.dtype == np.float16 and type(a) in plain and type(b) in plain:
        found = library._product(*(_shown(one, library.alignment) for one in (a, b)), None, False)
        if found is not None:
            return found.numpy()
    return np.matmul(a, b)


def _shown(array: Any, alignment: int) -> torch.Tensor:
    """The array as a tensor: without a copy, or as an aligned copy, since NumPy aligns to 16 bytes only."""
    if array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous:
        return _shown(array.T, alignment).t()
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % alignment == 0:
        return torch.from_numpy(array)
    copy = torch.empty(array.shape, dtype=torch.float16, device="cpu")
    copy.numpy()[...] = array
    return copy


def _cupy(library: Any, a: Any, b: Any) -> Any:
    import cupy

    if a.dtype == b.dtype == cupy.float16 and a.size and b.size:
        stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr, device=f"cuda:{a.device.id}")
        with torch.cuda.stream(stream):
            tensors = (torch.as_tensor(one, device=f"cuda:{one.device.id}") for one in (a, b))
            found = library._product(*tensors, None, False)
            if found is not None:
                return cupy.from_dlpack(found)  # here, where torch's stream is CuPy's: neither waits for another
    return cupy.matmul(a, b)
