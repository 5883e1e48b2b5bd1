"""torch.matmul and F.linear through exported kernels, where that is both possible and faster.

A processor's kernel runs in this process: load only folders you trust, as with any shared library. Of a GPU's kernel
only device code runs, on all memory that this process can reach there. A kernel is chosen by the exact problem (M, N,
K, layout, accumulator, type, bias), and used only if it was surely faster, on the device that it was measured on and,
on a processor, with as many threads. One kernel may be for several M: it is told M, and nothing is padded. If none is
for m rows, the one with the smallest M > m is used for which it was measured to pay: the input is padded to M rows, and
the result is the first m of M rows, whose memory it keeps. Before its first call a kernel is tried (`trial`): one that
does not give torch's product is not used. Everything else (other shapes, types, strides and alignments; gradients,
autocast, torch.func, tracing, modes) goes to torch, unchanged.

A kernel gets only addresses, so a call must be a plain product to give the same result as torch. torch's dispatcher
calls a function by keys: each transform, mode and special kind of tensor (autocast, vmap, tracing, lazy negation, meta,
sparse) has a key, and the highest key comes first. `op.cpp` handles these keys. The few cases without a key are checked
here, one by one (`unusual`).
"""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from . import cpu, cuda, held, op, trial

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""torch's type by the name that arrays have for theirs."""


def product_of_arrays(library: Any, a: Any, b: Any) -> Any:
    """The product of operands that no kernel took as they are: arrays by a kernel, else by torch or their library."""
    kinds = {_library(operand) for operand in (a, b)}
    if kinds == {"numpy"}:
        return _numpy(library, a, b)
    if kinds == {"cupy"}:
        return _cupy(library, a, b)
    return torch.matmul(a, b)


def _library(operand: Any) -> str:
    """Whose array it is, one of a derived class too; neither library need be installed."""
    roots = (kind.__module__.split(".")[0] for kind in type(operand).__mro__)
    return next((root for root in roots if root in ("numpy", "cupy")), "")


def _numpy(library: Any, a: Any, b: Any) -> Any:
    import numpy as np

    plain = (np.ndarray, np.memmap)  # other kinds mean more than their elements say: a mask, say
    if (dtype := _type(a, b)) and type(a) in plain and type(b) in plain:
        bits = (_shown(array.view(np.int16), library.alignment) for array in (a, b))
        product = library._product(*(array.view(dtype) for array in bits), None, False)
        if product is not None:
            return product.view(torch.int16).numpy().view(a.dtype)
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
            bits = (torch.as_tensor(array.view(cupy.int16), device=f"cuda:{array.device.id}") for array in (a, b))
            product = library._product(*(array.view(dtype) for array in bits), None, False)
            if product is not None:
                # Here, where torch's stream is CuPy's: neither waits for another.
                return cupy.from_dlpack(product.view(torch.int16)).view(a.dtype)
    return _own(cupy.matmul, a, b)


_has_torch_function = torch.overrides.has_torch_function
_deterministic = torch.are_deterministic_algorithms_enabled
_grad_enabled = torch.is_grad_enabled
_compiling = torch.compiler.is_dynamo_compiling
_linear = torch.nn.functional.linear

SERVED = ("none", "bias")
"""What may follow a product in calls of this library: `torch.nn.functional.linear` has nothing else."""


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


def _exporting() -> bool:
    """torch.compiler.is_exporting(), which is also true of what torch.compile traces in torch 2.11."""
    return torch.compiler._is_exporting_flag


def _old(kernel: held.Kernel) -> bool:
    """Whether libraries of older folders know such kernels."""
    return kernel.dtype == "fp16" and kernel.epilogue == "none"


def _served(kernel: held.Kernel) -> set[int]:
    """Numbers of rows, padded or as they are."""
    return {*range(kernel.rows[0], kernel.rows[1] + 1), *range(kernel.fewest, kernel.m + 1)}


class Library:
    """The kernels of one exported folder, for sums in `accumulate` precision. Safe to use from several threads.

    `device` is where they were measured; `reason` says why none of them is used here, "" where they
    are. `calls` counts who served each call: "kernel", "kernel of more rows", or the reason why torch did.
    `id` names the library in calls of torch.ops.cudal2, which torch.compile keeps. With `every`, all kernels serve,
    also those that were not surely faster, each any fewer rows, and none is tried before: to measure what that costs.
    With `anywhere` they serve on this machine, wherever they were measured. `pads` is whether kernels can serve fewer
    rows; those of older folders cannot.

    Raises ValueError where `folder` holds no export, Unusable where one of its files is damaged.
    """

    def __init__(self, folder: Path, accumulate: str = "f32", every: bool = False, anywhere: bool = False) -> None:
        export = held.read(folder, every)
        target = cuda if export.on_gpu else cpu
        if anywhere:
            export = export._replace(device=target.here())
        if export.op is None:
            raise held.Unusable(f"{folder} holds no operator for torch", "Export again")
        self.folder, self.device, self.alignment = folder, export.device, export.alignment
        self.reason = target.unsupported(export)
        self._ours: Counter[str] = Counter()
        kernels = [] if self.reason else [kernel for kernel in export.kernels if kernel.accumulate == accumulate]
        kernels = [kernel for kernel in kernels if kernel.dtype in trial.DTYPES and kernel.epilogue in SERVED]
        library = op.library(folder, export.op)
        copier, runner = (target.copier(export), target.runner(export)) if kernels else (0, 0)
        if not op.serves(library) or runner is None:
            kernels = [kernel._replace(rows=(kernel.m, kernel.m)) for kernel in kernels if _old(kernel)]
        codes = [target.code(export, kernel) for kernel in kernels]
        place = op.Place(alignment=1) if self.reason else target.place(export)
        name = (folder / held.FILE).read_bytes() + accumulate.encode()
        self._table = op.Table(library, place, name)
        self.pads = self._table.pads and copier is not None
        if not self.pads:
            kernels = [kernel._replace(fewest=kernel.m) for kernel in kernels]
        for kernel, rows, (code, workspace) in zip(kernels, held.owners(kernels), codes):
            if rows:
                self._table.add(kernel, rows, code, workspace)
            if kernel.fewest < kernel.m and kernel.m in rows:
                self._table.pad(kernel, copier)
        if kernels and runner:
            self._table.run_by(runner)
        if not every:
            self._table.try_first(trial.of(export, place, accumulate))
        self._table.make_standard()
        self.id, self.adds_bias = self._table.id, not export.on_gpu
        self.kernels = kernels
        self._rows: dict[tuple, frozenset[int]] = {}
        self._biased = {(kernel.n, kernel.k) for kernel in kernels if kernel.epilogue == "bias"}
        names = "attempt_matmul", "attempt_linear", *["attempt_biased"] * self._table.serves
        ops = (getattr(torch.ops.cudal2, name).default for name in names)
        # Without a function of Python's between.
        self._attempts = tuple(getattr(attempt, "_op", attempt) for attempt in ops)

    def __len__(self) -> int:
        """The number of kernels that may run here."""
        return len(self.kernels)

    @property
    def calls(self) -> Counter[str]:
        """The number of calls since loading, by who served them: a kernel, or torch and why."""
        return self._ours + self._table.outcomes()

    def rows(self, layer: torch.nn.Linear) -> frozenset[int]:
        """The numbers of input rows for which there are kernels with the weight and the bias of this layer."""
        n, k = layer.weight.shape
        epilogue = "bias" if layer.bias is not None and ((n, k) in self._biased or not self.adds_bias) else "none"
        of = n, k, layer.weight.dtype, epilogue
        if of not in self._rows:
            alike = (
                kernel
                for kernel in self.kernels
                if (kernel.n, kernel.k, trial.DTYPES[kernel.dtype], kernel.epilogue) == of
            )
            self._rows[of] = frozenset(m for kernel in alike for m in _served(kernel))
        return self._rows[of]

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """torch.matmul(a, b), for a [..., M, K] and b [K, N]; also of NumPy's arrays, and CuPy's.

        A `b` that is contiguous is the layout "nn"; one that is the transpose of a contiguous matrix, "tn".
        """
        if _compiling():
            return torch.matmul(a, b) if _exporting() else torch.ops.cudal2.matmul(a, b, self.id)
        product = self._product(a, b, None, False)
        return product_of_arrays(self, a, b) if product is None else product

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """torch.nn.functional.linear: x [..., K] times weight [N, K] transposed, plus bias [N]."""
        if _compiling():  # and fuses a bias, if a kernel does not add it
            whole = (bias is not None and tuple(weight.shape) not in self._biased) or _exporting()
            return _linear(x, weight, bias) if whole else torch.ops.cudal2.linear(x, weight, bias, self.id)
        product = self._product(x, weight, bias, True)
        return _linear(x, weight, bias) if product is None else product

    def _product(self, a: Any, b: Any, bias: Any, transposed: bool) -> torch.Tensor | None:
        """The product by a kernel, and the bias; None where torch must serve the call."""
        try:
            why = self.reason or unusual(a, b, bias)
            if not why:
                if bias is None:
                    return self._attempts[transposed](a, b, self.id)
                if self._biased and tuple(b.shape) in self._biased:
                    return self._attempts[2](a, b, bias, self.id)
                product = self._attempts[transposed](a, b, self.id, bias)
                return None if product is None else product.add_(bias)
        except (AttributeError, RuntimeError, TypeError):  # torch has its own words for what is wrong
            why = "not tensors"
        self._ours[why] += 1
        return None
