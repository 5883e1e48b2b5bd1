"""torch.matmul and F.linear through exported kernels, where that is both possible and faster.

A processor's kernel runs in this process: load only folders you trust, as with any shared library. Of a GPU's, only
device code runs, on memory that this process can reach there. A kernel is chosen by the exact
problem (M, N, K, layout, accumulator), and only where the device is the one it was measured on, a processor uses
as many threads as the measurement did, and it was surely faster then. Everything else (other shapes, types, strides
and alignments; gradients, autocast, torch.func, tracing, modes: all that `ordinary` tells of) goes to torch, unchanged.
"""

import logging
from collections import Counter
from pathlib import Path

import torch

from cudal2.problem import Accumulate
from cudal2.runtime.cpu import Cpu
from cudal2.runtime.cuda import Cuda
from cudal2.runtime.loaded import Multiply
from cudal2.runtime.manifest import read
from cudal2.runtime.ordinary import unusual
from cudal2.target import find

log = logging.getLogger(__name__)

_Key = tuple[int, int, int, str]


class Library:
    """The kernels of one exported folder. Safe to use from several threads.

    `environment` is where they were measured; `reason` says why none of them is used here, empty where they
    are. `calls` counts what happened to each call: "kernel", or the reason torch served it. torch.compile sees
    torch's own functions, and its calls are not counted.
    """

    def __init__(self, folder: Path, accumulate: Accumulate) -> None:
        manifest = read(folder)
        self.folder, self.environment = folder, manifest.environment
        target = find(manifest.target)
        self._place = Cuda(folder, manifest) if target.kind == "cuda" else Cpu(folder, manifest)
        self._contract = target.contract
        self.reason = self._place.unsupported_reason
        self.calls: Counter[str] = Counter()
        self._kernels: dict[_Key, Multiply] = {}
        if self.reason:
            log.warning("%s: %s; torch serves every call", folder, self.reason)
            return
        for kernel in manifest.kernels:
            p = kernel.problem
            if kernel.dispatch and p.accumulate == accumulate:
                self._kernels[p.m, p.n, p.k, p.layout] = self._place.load(kernel)

    def __len__(self) -> int:
        """How many problems have a kernel that may run here."""
        return len(self._kernels)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """torch.matmul(a, b), for a [..., M, K] and b [K, N].

        A `b` that is contiguous is the layout "nn"; one that is the transpose of a contiguous matrix, "tn".
        """
        found = None if torch.compiler.is_compiling() else self._run(a, b)
        return torch.matmul(a, b) if found is None else found

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """torch.nn.functional.linear: x [..., K] times weight [N, K] transposed, plus bias [N]."""
        found = None if torch.compiler.is_compiling() else self._run(x, weight, bias, transpose=True)
        return torch.nn.functional.linear(x, weight, bias) if found is None else found

    def _run(
        self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, transpose: bool = False
    ) -> torch.Tensor | None:
        """The product by a kernel, or nothing where torch is to serve the call."""
        found = self._product(a, b, bias, transpose)
        if isinstance(found, str):
            self.calls[found] += 1
            return None
        self.calls["kernel"] += 1
        return found

    def _product(
        self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, transpose: bool
    ) -> torch.Tensor | str:
        """The product, or the reason no kernel can give it."""
        if self.reason:
            return self.reason
        operands = (a, b) if bias is None else (a, b, bias)
        if why := unusual(*operands):
            return why
        if why := self._place.unsupported_tensor(a):
            return why
        for operand in operands[1:]:
            if operand.device != a.device:
                return "not on one device"
        if b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[1 if transpose else 0]:
            return "not a matrix times a matrix"
        if transpose:
            b = b.t()
        k, n = b.shape
        layout = {(n, 1): "nn", (1, k): "tn"}.get((b.stride(0), b.stride(1)))
        if not layout or not a.is_contiguous():
            return "not contiguous"
        kernel = self._kernels.get((a.numel() // k if k else 0, n, k, layout))
        if kernel is None:
            return "no faster kernel for this shape"
        if bias is not None:
            if not self._place.adds_bias:
                return "a bias is wanted"
            if bias.shape != (n,):
                return "not a bias for each column"
            if not bias.data_ptr():
                return "no memory"
        at_a, at_b, align = a.data_ptr(), b.data_ptr(), self._contract.alignment
        if not at_a or not at_b:
            return "no memory"
        if at_a % align or at_b % align:
            return f"not aligned to {align} bytes"
        c = torch.empty((*a.shape[:-1], n), dtype=torch.float16, device=a.device)
        if why := kernel(a, b, c):
            return why
        return c if bias is None else c.add_(bias)


def load(folder: str | Path, accumulate: Accumulate = "f32") -> Library:
    """The kernels that `cudal2 export` wrote to `folder` and that keep sums in `accumulate` precision.

    Raises ValueError where `folder` holds no export, HarnessFault where one of its files is damaged. On
    another device than the one measured, the library works and leaves every call to torch.
    """
    return Library(Path(folder), accumulate)
