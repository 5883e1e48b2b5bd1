"""Products of NumPy's arrays on a processor, and of CuPy's on CuPy's current stream, by the same kernels.

torch sees the arrays without a copy, if a kernel can read them where they are. If no kernel serves a call, the arrays'
own library does. They may hold float16, or the bfloat16 of ml_dtypes, which torch is shown by its bits.
"""

from typing import Any

import torch

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""torch's type by the name that arrays have for theirs."""


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
    if (dtype := _type(a, b)) and type(a) in plain and type(b) in plain:
        bits = (_shown(one.view(np.int16), library.alignment) for one in (a, b))
        found = library._product(*(one.view(dtype) for one in bits), None, False)
        if found is not None:
            return found.view(torch.int16).numpy().view(a.dtype)
    return _own(np.matmul, a, b)


def _type(a: Any, b: Any) -> torch.dtype | None:
    """The type of both, if kernels may be for it."""
    return TYPES.get(a.dtype.name) if a.dtype == b.dtype and a.size and b.size and a.ndim and b.ndim else None


def _own(matmul: Any, a: Any, b: Any) -> Any:
    """By the arrays' own library. Raises TypeError with the remedy where that has no products of bfloat16."""
    try:
        return matmul(a, b)
    except TypeError as error:
        if "bfloat16" not in (a.dtype.name, b.dtype.name):
            raise
        remedy = "no kernel serves this call, and without one it cannot be computed: cast to float32"
        raise TypeError(f"{error}; {remedy}") from error


def _shown(array: Any, alignment: int) -> torch.Tensor:
    """An array of int16 as a tensor: without a copy, or as an aligned copy, since NumPy aligns to 16 bytes only."""
    if array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous:
        return _shown(array.T, alignment).t()
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % alignment == 0:
        return torch.from_numpy(array)
    copy = torch.empty(array.shape, dtype=torch.int16, device="cpu")
    copy.numpy()[...] = array
    return copy


def _cupy(library: Any, a: Any, b: Any) -> Any:
    import cupy

    if dtype := _type(a, b):
        stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr, device=f"cuda:{a.device.id}")
        with torch.cuda.stream(stream):
            bits = (torch.as_tensor(one.view(cupy.int16), device=f"cuda:{one.device.id}") for one in (a, b))
            found = library._product(*(one.view(dtype) for one in bits), None, False)
            if found is not None:
                # Here, where torch's stream is CuPy's: neither waits for another.
                return cupy.from_dlpack(found.view(torch.int16)).view(a.dtype)
    return _own(cupy.matmul, a, b)
