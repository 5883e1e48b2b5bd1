"""The library behind torch.ops.cudal2 in this process, and the tables in which its calls look up kernels.

The library is loaded once per process, however many folders are, because torch can define an operator only once. The
folder's `src/op.cpp`, `product.h` and `table.h` say what a call does.
"""

import ctypes
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch

from .held import File, Kernel, Unusable, opened

VERSION = 1
SONAME = f"libcudal2_torch.so.{VERSION}"
OUTCOMES = (
    "kernel",
    "no kernels for these types",
    "not on the device measured",
    "not on one device",
    "not a matrix times a matrix",
    "not contiguous",
    "no faster kernel for this shape",
    "a bias is wanted",
    "not a bias for each column",
    "no memory",
    "not aligned",
    "not measured with as many threads",
    "the kernel refused",
    "the kernel cannot be launched",
    "torch has more to do than multiply",
)
PADDED = "kernel of more rows"
TRIED = ("the kernel was not tried yet", "the kernel was wrong when it was tried")
Trial = Callable[[Kernel, Sequence[int], int], int]
"""Of a kernel, the numbers of rows that it serves, and the device's index: 1 where the kernel is right, 0 where it is
wrong, -1 where that could not be found out."""
_TRIAL = ctypes.CFUNCTYPE(c_int, c_int64, c_int32)
_OLD_TRIAL = ctypes.CFUNCTYPE(c_int, c_int64, c_int64, c_int64, c_int, c_int32)
_KEPT: list[object] = []
"""Functions that tables hold, which stay for ever."""
_LOCK = threading.Lock()


class Place(ctypes.Structure):
    """Where a folder's kernels run; the struct `Place` of `table.h`."""

    _fields_ = [
        *(("id", c_int64), ("launched", c_int32), ("device_type", c_int32), ("devices", c_uint64)),
        *(("threads", c_int32), ("alignment", c_int32), ("semaphores", c_int64)),
        *((name, c_void_p) for name in ("stream", "needs", "launch", "capturing", "workspace", "message")),
    ]


class Table:
    """The kernels of one folder, as torch.ops.cudal2 looks them up; calls name the table by its `id`."""

    def __init__(self, library: ctypes.CDLL, place: Place, name: bytes) -> None:
        """The id depends on `name`, so that it is the same in every process that loads the same folder first."""
        self._library, self.id = library, int.from_bytes(hashlib.sha256(name).digest()[:7], "little") or 1
        with _LOCK:
            while library.cudal2_op_known(self.id):
                self.id += 1
            place.id = self.id
            self._table = c_void_p(library.cudal2_op_open(ctypes.byref(place)))
            self._added: list[tuple[Kernel, Sequence[int]]] = []
            library.cudal2_op_publish(self._table)

    @property
    def serves(self) -> bool:
        """As the function of that name says of the library."""
        return serves(self._library)

    @property
    def pads(self) -> bool:
        """Whether kernels of this library can serve fewer rows; those of an older folder's library cannot."""
        return hasattr(self._library, "cudal2_op_pad")

    def add(self, kernel: Kernel, rows: Sequence[int], code: int, workspace: int) -> None:
        """Adds a kernel for these numbers of rows: the address of its handle or function, and its workspace in bytes
        (-1: the launcher knows).

        All kernels must be added before the first call. A library of an older folder takes fp16 without a bias only.
        """
        self._added.append((kernel, rows))
        where, tn = (kernel.n, kernel.k), kernel.layout == "tn"
        if self.serves:
            of = (kernel.dtype.encode(), kernel.epilogue == "bias")
            given = (c_int * len(rows))(*rows), len(rows)
            self._library.cudal2_op_serve(self._table, *given, *where, tn, *of, code, workspace)
        else:
            self._library.cudal2_op_add(self._table, kernel.m, *where, tn, code, workspace)

    def pad(self, kernel: Kernel, copier: int) -> None:
        """Lets a kernel that was added serve from its fewest rows on."""
        where = kernel.m, kernel.n, kernel.k, kernel.layout == "tn"
        if self.serves:
            of = (kernel.dtype.encode(), kernel.epilogue == "bias")
            self._library.cudal2_op_fill_up(self._table, *where, *of, kernel.fewest, copier)
        else:
            self._library.cudal2_op_pad(self._table, *where, kernel.fewest, copier)

    def run_by(self, runner: int) -> None:
        """Launches every kernel by the function at that address."""
        self._library.cudal2_op_run(self._table, runner)

    def try_first(self, trial: Trial) -> None:
        """Has each kernel tried by `trial` before its first call on a device; by an older folder's library none is."""
        if self.serves:
            _KEPT.append(_TRIAL(lambda number, device: trial(*self._added[number], device)))
            self._library.cudal2_op_try_kernels(self._table, _KEPT[-1])
        elif hasattr(self._library, "cudal2_op_try"):
            known = {(*kernel[:3], kernel.layout == "tn"): (kernel, rows) for kernel, rows in self._added}
            _KEPT.append(_OLD_TRIAL(lambda m, n, k, tn, device: trial(*known[m, n, k, bool(tn)], device)))
            self._library.cudal2_op_try(self._table, _KEPT[-1])

    def make_standard(self) -> None:
        """Lets this table serve the calls of torch.ops.cudal2 that name no library."""
        self._library.cudal2_op_standard(self._table)

    def outcomes(self) -> Counter[str]:
        """The number of calls by who served them: a kernel, or torch and why."""
        counts = (c_int64 * len(OUTCOMES))()
        self._library.cudal2_op_outcomes(self._table, counts)
        met = dict(zip(OUTCOMES, counts, strict=True))
        if self.pads:
            met[PADDED] = self._library.cudal2_op_padded(self._table)
        if hasattr(self._library, "cudal2_op_tried"):
            tried = (c_int64 * len(TRIED))()
            self._library.cudal2_op_tried(self._table, tried)
            met.update(zip(TRIED, tried))
        return Counter({name: count for name, count in met.items() if count})


def serves(library: ctypes.CDLL) -> bool:
    """Whether a library knows types, biases and several numbers of rows; an older folder's does not."""
    return hasattr(library, "cudal2_op_serve")


def library(folder: Path, file: File) -> ctypes.CDLL:
    """The library: the one that is in the process already, or else this folder's. Raises Unusable."""
    with _LOCK:
        try:
            found = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD)
        except OSError:
            found = _first(folder, file)
        for name, restype, *arguments in (
            ("cudal2_op_open", c_void_p, c_void_p),
            ("cudal2_op_add", None, c_void_p, c_int, c_int, c_int, c_int, c_void_p, c_int64),
            ("cudal2_op_publish", None, c_void_p),
            ("cudal2_op_standard", None, c_void_p),
            ("cudal2_op_known", c_int, c_int64),
            ("cudal2_op_outcomes", None, c_void_p, c_void_p),
            ("cudal2_op_pad", None, c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p),
            ("cudal2_op_padded", c_int64, c_void_p),
            ("cudal2_op_serve", c_int, c_void_p, c_void_p, *[c_int] * 4, c_char_p, c_int, c_void_p, c_int64),
            ("cudal2_op_fill_up", None, c_void_p, *[c_int] * 4, c_char_p, c_int, c_int, c_void_p),
            ("cudal2_op_run", None, c_void_p, c_void_p),
            ("cudal2_op_try_kernels", None, c_void_p, _TRIAL),
            ("cudal2_op_try", None, c_void_p, _OLD_TRIAL),
            ("cudal2_op_tried", None, c_void_p, c_void_p),
        ):
            function: Any = getattr(found, str(name), None)
            if function:
                function.restype, function.argtypes = restype, arguments
    return found


def _first(folder: Path, file: File) -> ctypes.CDLL:
    stand_ins = _stand_ins()
    while stand_ins:
        stand_ins.pop()._destroy()
    if _defined():  # a second definition would end the process
        raise Unusable("torch.ops.cudal2 is defined by something else in this process", "Load one of them only")
    try:
        found = opened(folder, file)
    except OSError as error:
        remedy = "It needs torch 2.11 or later, and a libc and a libstdc++ no older than where it was exported"
        raise Unusable(f"{folder / file.path} cannot be loaded: {error}", remedy) from error
    # The meta function: shape, strides and type of a result, as torch's own function gives them.
    for name, (_, function) in _TORCHS.items():
        torch.library.register_fake(f"cudal2::{name}")(function)
    return found


def stand_in() -> None:
    """Defines operators of the same names by torch's own, for a process that cannot load the library."""
    with _LOCK:
        if _defined():
            return
        made = torch.library.Library("cudal2", "FRAGMENT")
        _stand_ins().append(made)
        for name, (schema, function) in _TORCHS.items():
            made.define(name + schema)
            made.impl(name, function, "CompositeImplicitAutograd")


def _stand_ins() -> list[torch.library.Library]:
    """The stand-ins of all packages in this process. A package that was exported elsewhere may have defined them."""
    return vars(torch.library).setdefault("_cudal2_stand_ins", [])


def _defined() -> bool:
    return hasattr(torch.ops.cudal2, "linear")


def _linear(input, weight, bias=None, library=0):
    return torch.nn.functional.linear(input, weight, bias)


def _matmul(input, other, library=0):
    return torch.matmul(input, other)


def _product(a, b, bias, transposed, library=0):
    return torch.nn.functional.linear(a, b, bias) if transposed else torch.matmul(a, b)


_TORCHS: dict[str, tuple[str, Callable]] = {
    "linear": ("(Tensor input, Tensor weight, Tensor? bias=None, int library=0) -> Tensor", _linear),
    "matmul": ("(Tensor input, Tensor other, int library=0) -> Tensor", _matmul),
    "product": ("(Tensor a, Tensor b, Tensor? bias, bool transposed, int library=0) -> Tensor", _product),
}
"""The public operators that `op.cpp` defines, and the function of torch's that each stands for."""
