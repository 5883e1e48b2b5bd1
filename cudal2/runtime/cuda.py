"""Where kernels of a CUDA target run: GPUs of the name they were measured on, on torch's current stream.

A call enqueues, and returns; it allocates only what torch's caching allocator gives, so that it can be captured
into a CUDA graph. All kernels share one workspace for each stream, which orders their use of it.
"""

import threading

import torch

from cudal2 import processor
from cudal2.contract import CUDA_CONTRACT
from cudal2.runtime.loaded import Loaded
from cudal2.runtime.manifest import Manifest


class Cuda:
    """The GPUs of this machine, asked to run kernels measured as `manifest` says."""

    adds_bias = False
    """torch adds a bias within its own kernel, and an addition of ours would cost a launch and a pass over C."""

    def __init__(self, manifest: Manifest) -> None:
        measured = manifest.environment.device
        here = [describe(index) for index in range(torch.cuda.device_count())]
        self.devices = frozenset(torch.device("cuda", index) for index, name in enumerate(here) if name == measured)
        elsewhere = f"measured on {measured}, not on {' or '.join(here) or 'a GPU'}"
        self.unsupported_reason = "" if self.devices else elsewhere
        """Why no kernel may run on this machine, or nothing."""
        self._lock = threading.Lock()
        self._workspaces: dict[tuple[torch.device, int], torch.Tensor] = {}
        self._called: set[tuple[torch.device, Loaded]] = set()

    def unsupported_tensor(self, tensor: torch.Tensor) -> str:
        """Why no kernel may touch the tensor's memory, or nothing."""
        return "" if tensor.device in self.devices else "not on a GPU of the kind measured"

    def run(self, kernel: Loaded, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
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
                addresses = a.data_ptr(), b.data_ptr(), c.data_ptr()
                if kernel.function(*addresses, *kernel.mnk, workspace.data_ptr(), stream):
                    self._workspaces.pop(place, None)  # what it did enqueue may leave semaphores behind
                    return "the kernel refused"
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
