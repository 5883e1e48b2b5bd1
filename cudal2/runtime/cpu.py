"""Where kernels of the CPU target run: the processor they were measured on, with as many threads."""

import threading
from functools import partial
from pathlib import Path

import torch

from cudal2 import processor
from cudal2.runtime.loaded import Loaded, Multiply
from cudal2.runtime.manifest import Kernel, Manifest
from cudal2.target import find


class Cpu:
    """This machine's processor, asked to run kernels measured as `manifest` says."""

    adds_bias = True
    """Whether a product with a bias is left to a kernel and an addition."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._contract = folder, find(manifest.target).contract
        self.threads = manifest.environment.threads
        self.unsupported_reason = _unsupported_reason(manifest)
        """Why no kernel may run on this machine, or nothing."""
        self._local = threading.local()  # two threads may call a kernel at once

    def unsupported_tensor(self, tensor: torch.Tensor) -> str:
        """Why no kernel may touch the tensor's memory, or nothing."""
        return "" if tensor.device.type == "cpu" else "not on the CPU"

    def load(self, kernel: Kernel) -> Multiply:
        """The kernel, to be called with A, B and C. Raises HarnessFault where its library is damaged or foreign."""
        return partial(self._run, Loaded(self._folder, kernel, self._contract))

    def _run(self, kernel: Loaded, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
        """Let the kernel write the product to C; why it did not, or nothing."""
        threads = torch.get_num_threads()
        if threads != self.threads:
            return f"not measured with {threads} threads"
        scratch = getattr(self._local, "scratch", None)
        if scratch is None or scratch.numel() < kernel.workspace:
            scratch = self._local.scratch = torch.empty(max(kernel.workspace, 1), dtype=torch.uint8, device="cpu")
        code = kernel.function(a.data_ptr(), b.data_ptr(), c.data_ptr(), *kernel.mnk, scratch.data_ptr())
        return "the kernel refused" if code else ""


def _unsupported_reason(manifest: Manifest) -> str:
    measured, here = manifest.environment.device, processor.name()
    if measured != here:
        return f"measured on {measured}, not on {here}"
    if missing := set(manifest.instructions) - processor.instructions():
        return f"built for a processor with {' '.join(sorted(missing))}"
    return ""
