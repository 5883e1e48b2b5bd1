"""torch.matmul and F.linear through exported kernels, where that is both possible and faster.

A kernel runs in this process: load only folders you trust, as with any shared library. It is chosen by the exact
problem (M, N, K, layout, accumulator), and only where the device is the one it was measured on, a processor uses
as many threads as the measurement did, and it was surely faster then. Everything else
(other shapes, types, strides, alignments, gradients) goes to torch, unchanged.
"""

import logging
from collections import Counter
from pathlib import Path

import torch

from cudal2.problem import Accumulate
from cudal2.runtime.cpu import Cpu
from cudal2.runtime.cuda import Cuda
from cudal2.runtime.loaded import Loaded
from cudal2.runtime.manifest import read
from cudal2.target import find

log = logging.getLogger(__name__)

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_Key = tuple[int, int, int, str]


class Library:
    """The kernels of one exported folder. Safe to use from several threads.

    `environment` is where they were measured; `reason` says why none of them is used here, empty where they
    are. `calls` counts what happened to each call: "kernel", or the reason torch served it.
    """

    def __init__(self, folder: Path, accumulate: Accumulate) -> None:
        manifest = read(folder)
        self.folder, self.environment = folder, manifest.environment
        self._place = Cuda(manifest) if find(manifest.target).kind == "cuda" else Cpu(manifest)
        self.reason = self._place.obstacle
        self.calls: Counter[str] = Counter()
        self._kernels: dict[_Key, Loaded] = {}
        if self.reason:
            log.warning("%s: %s; torch serves every call", folder, self.reason)
            return
        for kernel in manifest.kernels:
            p = kernel.problem
            if kernel.dispatch and p.accumulate == accumulate:
                self._kernels[p.m, p.n, p.k, p.layout] = Loaded(folder, kernel, self._place.takes_stream)

    def __len__(self) -> int:
        """How many problems have a kernel that may run here."""
        return len(self._kernels)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """torch.matmul(a, b), for a [..., M, K] and b [K, N].

        A `b` that is contiguous is the layout "nn"; one that is the transpose of a contiguous matrix, "tn".
        """
        found = self._run(a, b)
        return torch.matmul(a, b) if isinstance(found, str) else found

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """torch.nn.functional.linear: x [..., K] times weight [N, K] transposed, plus bias [N]."""
        if bias is not None and _wants_gradient(bias):
            self.calls["gradients are wanted"] += 1
        elif bias is not None and not self._place.adds_bias:
            self.calls["a bias is wanted"] += 1
        else:
            found = self._run(x, weight.t())
            if not isinstance(found, str):
                return found if bias is None else found.add_(bias)
        return torch.nn.functional.linear(x, weight, bias)

    def _run(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
        """The product, or the reason no kernel can give it."""
        found = self._product(a, b)
        self.calls[found if isinstance(found, str) else "kernel"] += 1
        return found

    def _product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | str:
        if self.reason:
            return self.reason
        if type(a) not in _PLAIN or type(b) not in _PLAIN:
            return "not a plain tensor"
        if a.dtype is not torch.float16 or b.dtype is not torch.float16:
            return "not float16"
        if strange := self._place.strange(a) or self._place.strange(b):
            return strange
        if a.device != b.device:
            return "not on one device"
        if b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[0]:
            return "not a matrix times a matrix"
        k, n = b.shape
        layout = {(n, 1): "nn", (1, k): "tn"}.get((b.stride(0), b.stride(1)))
        if not layout or not a.is_contiguous():
            return "not contiguous"
        kernel = self._kernels.get((a.numel() // k if k else 0, n, k, layout))
        if kernel is None:
            return "no faster kernel for this shape"
        if _wants_gradient(a) or _wants_gradient(b):
            return "gradients are wanted"
        align = self._place.align
        if a.data_ptr() % align or b.data_ptr() % align:
            return f"not aligned to {align} bytes"
        c = torch.empty((*a.shape[:-1], n), dtype=torch.float16, device=a.device)
        return self._place.run(kernel, a, b, c) or c


def _wants_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def load(folder: str | Path, accumulate: Accumulate = "f32") -> Library:
    """The kernels that `cudal2 export` wrote to `folder` and that keep sums in `accumulate` precision.

    Raises ValueError where `folder` holds no export, HarnessFault where one of its files is damaged. On
    another device than the one measured, the library works and leaves every call to torch.
    """
    return Library(Path(folder), accumulate)
