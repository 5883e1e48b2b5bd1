"""torch.matmul and F.linear through exported kernels, where that is both possible and faster.

A kernel runs in this process: load only folders you trust, as with any shared library. It is chosen by the exact
problem (M, N, K, layout, accumulator), and only where the device is the one it was measured on, torch uses as
many threads as the measurement did, and it was surely faster then. Everything else
(other shapes, types, strides, alignments, gradients) goes to torch, unchanged.
"""

import ctypes
import hashlib
import logging
import threading
from collections import Counter
from pathlib import Path

import torch

from cudal2 import processor
from cudal2.problem import Accumulate
from cudal2.records import HarnessFault
from cudal2.runtime.manifest import Kernel, Manifest, read

log = logging.getLogger(__name__)

ALIGN = 64
"""Bytes that the contract aligns A, B, C and the workspace to."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_Key = tuple[int, int, int, str]


class _Loaded:
    """An exported kernel bound to its problem; `call` returns what the kernel returns, 0 for success."""

    def __init__(self, folder: Path, kernel: Kernel) -> None:
        problem = kernel.problem
        path = folder / kernel.library
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise HarnessFault(f"{path} cannot be read: {error}", "Export again") from error
        if found != kernel.sha256:
            raise HarnessFault(f"{path} is not the library that was exported", "Export again")
        try:
            library = ctypes.CDLL(str(path))  # without OpenMP of its own: torch's is loaded, and shared
            self.function = library.hgemm
        except (OSError, AttributeError) as error:
            raise HarnessFault(f"{path} cannot be loaded: {error}", "Export again on this machine") from error
        self.function.argtypes = (ctypes.c_void_p,) * 3 + (ctypes.c_int,) * 3 + (ctypes.c_void_p,)
        self.mnk = (problem.m, problem.n, problem.k)
        self.workspace = 0
        if hasattr(library, "hgemm_workspace"):
            library.hgemm_workspace.restype = ctypes.c_size_t
            self.workspace = library.hgemm_workspace(*self.mnk)
        self._local = threading.local()  # two threads may call the kernel at once

    def call(self, a: int, b: int, c: int) -> int:
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = torch.empty(max(self.workspace, 1), dtype=torch.uint8)
        return self.function(a, b, c, *self.mnk, scratch.data_ptr())


class Library:
    """The kernels of one exported folder. Safe to use from several threads.

    `environment` is where they were measured; `reason` says why none of them is used here, empty where they
    are. `calls` counts what happened to each call: "kernel", or the reason torch served it.
    """

    def __init__(self, folder: Path, accumulate: Accumulate) -> None:
        manifest = read(folder)
        self.folder, self.environment, self.reason = folder, manifest.environment, _obstacle(manifest)
        self.calls: Counter[str] = Counter()
        self._kernels: dict[_Key, _Loaded] = {}
        if self.reason:
            log.warning("%s: %s; torch serves every call", folder, self.reason)
            return
        for kernel in manifest.kernels:
            p = kernel.problem
            if kernel.dispatch and p.accumulate == accumulate:
                self._kernels[p.m, p.n, p.k, p.layout] = _Loaded(folder, kernel)

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
        if a.device.type != "cpu" or b.device.type != "cpu":
            return "not on the CPU"
        if b.ndim != 2 or a.ndim < 2 or a.shape[-1] != b.shape[0]:
            return "not a matrix times a matrix"
        k, n = b.shape
        layout = {(n, 1): "nn", (1, k): "tn"}.get((b.stride(0), b.stride(1)))
        if not layout or not a.is_contiguous():
            return "not contiguous"
        kernel = self._kernels.get((a.numel() // k if k else 0, n, k, layout))
        if kernel is None:
            return "no faster kernel for this shape"
        if torch.get_num_threads() != self.environment.threads:
            return f"not measured with {torch.get_num_threads()} threads"
        if _wants_gradient(a) or _wants_gradient(b):
            return "gradients are wanted"
        if a.data_ptr() % ALIGN or b.data_ptr() % ALIGN:
            return "not aligned to 64 bytes"
        c = torch.empty((*a.shape[:-1], n), dtype=torch.float16)
        if kernel.call(a.data_ptr(), b.data_ptr(), c.data_ptr()):
            return "the kernel refused"
        return c


def _wants_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _obstacle(manifest: Manifest) -> str:
    """Why no kernel may run on this machine, or nothing."""
    measured, here = manifest.environment.device, processor.name()
    if measured != here:
        return f"measured on {measured}, not on {here}"
    if missing := set(manifest.instructions) - processor.instructions():
        return f"built for a processor with {' '.join(sorted(missing))}"
    return ""


def load(folder: str | Path, accumulate: Accumulate = "f32") -> Library:
    """The kernels that `cudal2 export` wrote to `folder` and that keep sums in `accumulate` precision.

    Raises ValueError where `folder` holds no export, HarnessFault where one of its files is damaged. On
    another processor than the one measured, the library works and leaves every call to torch.
    """
    return Library(Path(folder), accumulate)
