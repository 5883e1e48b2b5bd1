"""Where kernels of a CUDA target run: GPUs of the name they were measured on, on torch's current stream.

A call enqueues, and returns; it allocates only what torch's caching allocator gives, so that it can be captured
into a CUDA graph. All kernels share one workspace for each stream, which orders their use of it.
"""

import logging
import threading
from functools import partial
from pathlib import Path

import torch

from cudal2 import processor
from cudal2.contract import CUDA_CONTRACT
from cudal2.records import HarnessFault
from cudal2.runtime.launched import Launched
from cudal2.runtime.loaded import Multiply
from cudal2.runtime.manifest import Kernel, Manifest

log = logging.getLogger(__name__)


class Cuda:
    """The GPUs of this machine, asked to run kernels measured as `manifest` says."""

    adds_bias = False
    """torch adds a bias within its own kernel, and an addition of ours would cost a launch and a pass over C."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._launcher = folder, manifest.launcher
        measured = manifest.environment.device
        here = [describe(index) for index in range(torch.cuda.device_count())]
        self.devices = frozenset(torch.device("cuda", index) for index, name in enumerate(here) if name == measured)
        elsewhere = f"measured on {measured}, not on {' or '.join(here) or 'a GPU'}"
        self.unsupported_reason = "" if self.devices else elsewhere
        """Why no kernel may run on this machine, or nothing."""
        self._lock = threading.Lock()
        self._workspaces: dict[tuple[torch.device, int], torch.Tensor] = {}
        self._called: set[tuple[torch.device, Launched]] = set()
        self._told: set[Launched] = set()

    def unsupported_tensor(self, tensor: torch.Tensor) -> str:
        """Why no kernel may touch the tensor's memory, or nothing."""
        return "" if tensor.device in self.devices else "not on a GPU of the kind measured"

    def load(self, kernel: Kernel) -> Multiply:
        """The kernel, to be called with A, B and C. Raises HarnessFault where a file is missing or damaged."""
        if self._launcher is None:
            raise HarnessFault(f"{self._folder} holds nothing to launch its kernels with", "Export again")
        return partial(self._run, Launched(self._folder, self._launcher, kernel))

    def _run(self, kernel: Launched, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
        """Let the kernel write the product to C, once the stream gets there; why it will not, or nothing."""
        with torch.cuda.device(a.device):
            stream, capturing = torch.cuda.current_stream().cuda_stream, torch.cuda.is_current_stream_capturing()
            if capturing and (a.device, kernel) not in self._called:
                # The first call loads code, which CUDA may refuse here, and then the capture is lost.
                return "not called before this capture"
            # The launches of two threads on one stream must not mix: they share its workspace.
            with self._lock:
                place = a.device, stream
                workspace = self._workspace(place, kernel.workspace, capturing)
                why = kernel.launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), workspace.data_ptr(), stream)
                if why:
                    self._workspaces.pop(place, None)  # what it did enqueue may leave semaphores behind
                    if kernel not in self._told:
                        self._told.add(kernel)
                        log.warning("%s: a kernel cannot be launched, torch serves its calls: %s", self._folder, why)
                    return "the kernel cannot be launched"
                self._called.add((a.device, kernel))
        return ""

    def _workspace(self, place: tuple[torch.device, int], nbytes: int, capturing: bool) -> torch.Tensor:
        """At least `nbytes` for a call on the current stream, zero at the head."""
        found = self._workspaces.get(place)
        # A captured call may be replayed on any stream at any time, so it gets a workspace of its own.
        if found is None or found.numel() < nbytes or capturing:
            found = torch.empty(max(nbytes, CUDA_CONTRACT.semaphores), dtype=torch.uint8, device=place[0])
            found[: CUDA_CONTRACT.semaphores].zero_()
            if not capturing:
                self._workspaces[place] = found
        return found


def describe(index: int) -> str:
    """A GPU as the worker's environment names it."""
    properties = torch.cuda.get_device_properties(index)
    return processor.gpu_name(properties.name, properties.multi_processor_count)
