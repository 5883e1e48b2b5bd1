"""Seconds of the vendor's calls on the GPU's own clock: of graphs of calls between two events; and of calls that were
captured once, replayed in any order behind touches (`replay.cpp`, compiled on first use).

A candidate's calls go through a history that is new for each window (history.py), and so do those of what it is
compared with. Capturing them anew each time would take Python some ten microseconds a call.
"""

import ctypes
import statistics
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_double, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cudal2.records import HarnessFault, digest
from cudal2.worker.build import artefact, compiler, compiler_name, trusted
from cudal2.worker.cuda import device
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.cuda.vendor import hosttime
from cudal2.worker.cuda.vendor.hosttime import Set
from cudal2.worker.gpu.arena import elsewhere
from cudal2.worker.gpu.history import KEPT, KEPT_OF_FEW, TOUCH, TOUCHES_OF_FEW, Touches

Enqueue = Callable[..., None]
"""Enqueues one call on a set's tensors on torch's current stream."""
SPIN_CYCLES = 300_000
"""About 150 µs at 2 GHz, in which the host gets ahead of the GPU; the runner spins as long."""
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared")
TOUCHED, ROUNDS = 1000, 9
"""Empty kernels in a graph, and how often such a graph is replayed, to tell what touches add to it."""


class DeviceClock:
    """Seconds a call on the GPU, from graphs of calls between two events. Has a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._elsewhere = elsewhere(device)

    def run(self, enqueue: Enqueue, buffers: Set) -> Tensor:
        """C after one call, which found it poisoned. Waits for it."""
        with torch.cuda.stream(self.stream):
            buffers[-1].fill_(float("nan"))
            enqueue(*buffers)
        self.stream.synchronize()
        return buffers[-1]

    def graph(self, enqueue: Enqueue, sets: Sequence[Set], keep: bool = False) -> torch.cuda.CUDAGraph:
        """One call on each of the sets, in turn. `enqueue` has run before: nothing may be loaded during capture. With
        `keep` the graph's nodes can be read, and it is not ready to be replayed.

        Not through `torch.cuda.graph`, which collects garbage and empties torch's pool at every capture.
        """
        graph = torch.cuda.CUDAGraph(keep_graph=keep)
        with torch.cuda.stream(self.stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for buffers in sets:
                    enqueue(*buffers)
            finally:
                graph.capture_end()
        return graph

    def cold(self, graph: torch.cuda.CUDAGraph, calls: int) -> float:
        """Seconds a call of a graph of `calls`, each on a set of its own."""
        return self.replay(graph) / calls

    def replay(self, graph: torch.cuda.CUDAGraph) -> float:
        """Seconds of one replay of a graph, which finds nothing in the L2."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            self._elsewhere.max()
            torch.cuda._sleep(SPIN_CYCLES)  # the host gets ahead of the GPU: no launch latency between the events
            start.record()
            graph.replay()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def take_turn(self) -> None:
        """Have the GPU turn to this process from another's, which takes tens of microseconds, and wait for it."""
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(SPIN_CYCLES)
        self.stream.synchronize()


@cache
def library() -> ctypes.CDLL:
    """replay.cpp, compiled and loaded. Raises HarnessFault where it cannot be."""
    here = Path(__file__)
    source, programs = here.with_suffix(".cpp"), here.parents[1] / "programs"
    texts = [path.read_text() for path in (source, programs / "history.h", programs / "driver.h")]
    headers, driver = (f"-I{programs}", f"-I{toolchain.find().root / 'include'}"), device.find().driver_library
    key = digest(compiler_name(), *FLAGS, *headers, driver, *texts)[:16]

    def make(folder: Path) -> None:
        trusted([compiler(), *FLAGS, *headers, str(source), driver, "-o", str(folder / "replay.so")])

    found = ctypes.CDLL(str(artefact(f"replay-{key}", make) / "replay.so"))
    found.replay_said.restype = c_char_p
    found.replay_open.restype = found.replay_take.restype = c_void_p
    found.replay_take.argtypes = c_void_p, c_size_t
    found.replay_drop.argtypes = (c_void_p,)
    found.replay_run.argtypes = (*(c_void_p,) * 3, c_size_t, c_void_p, c_size_t, c_void_p, POINTER(c_double))
    found.replay_empty.argtypes = (*(c_void_p,) * 2, *(c_size_t,) * 2, c_void_p, POINTER(c_double))
    return found


class Replayer:
    """Replays captured calls on one stream of the current context. Lives as long as the process."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream, self.handle = stream, c_void_p(library().replay_open())
        if not self.handle:
            raise _failed()

    def touch_seconds(self) -> dict[int, float]:
        """Seconds that the touches of a call add to a graph of kernels, by their number: the same behind a small kernel
        and a large one. As many of them keep an element as in a history."""
        scratch = torch.zeros(1, dtype=torch.int16, device=self.stream.device)
        torch.cuda.synchronize()
        found = dict[int, float]()
        for each, share in ((1, KEPT), (TOUCHES_OF_FEW, KEPT_OF_FEW)):
            touches = np.zeros((TOUCHED, each + 1), TOUCH)
            touches["where"] = scratch.data_ptr()
            keeps = np.arange(TOUCHED * each) % round(1 / share) == 0
            touches["source"][:, :-1] = np.where(keeps, scratch.data_ptr(), 0).reshape(TOUCHED, each)
            rounds = [[self._empty(some) for some in (touches.ravel(), touches[:0])] for _ in range(ROUNDS)]
            found[each] = statistics.median(with_ - without for with_, without in rounds) / TOUCHED
        return found

    def before(self, touches: Touches, calls: int) -> hosttime.Before:
        """Has so many calls on the host's clock come behind these touches."""
        return hosttime.Before(library().replay_touch, self.handle, touches, len(touches) // calls)

    def _empty(self, touches: Touches) -> float:
        seconds, each = c_double(), len(touches) // TOUCHED
        stream = self.stream.cuda_stream
        if library().replay_empty(self.handle, stream, TOUCHED, each, touches.ctypes.data, ctypes.byref(seconds)):
            raise _failed()
        return seconds.value


class Calls:
    """The `count` calls that were captured in a graph, which is kept with them. Raises HarnessFault where they are no
    chain of kernels, as many for each call."""

    def __init__(self, replayer: Replayer, graph: torch.cuda.CUDAGraph, count: int) -> None:
        self._replayer = replayer
        self._handle = c_void_p(library().replay_take(graph.raw_cuda_graph(), count))
        if not self._handle:
            raise _failed()
        # The graph lives as long as what was taken from it. A process that ends leaves both to the driver.
        weakref.finalize(self, _drop, self._handle, graph).atexit = False

    def run(self, which: Sequence[int], touches: Touches) -> float:
        """Seconds on the device's clock of these calls, each behind its touches."""
        numbers, seconds = np.array(which, np.uint32), c_double()
        where = (numbers.ctypes.data, len(touches) // len(numbers), touches.ctypes.data, ctypes.byref(seconds))
        stream = self._replayer.stream.cuda_stream
        if library().replay_run(self._replayer.handle, self._handle, stream, len(numbers), *where):
            raise _failed()
        return seconds.value


def _drop(handle: c_void_p, graph: torch.cuda.CUDAGraph) -> None:
    library().replay_drop(handle)


def _failed() -> HarnessFault:
    said = library().replay_said().decode(errors="replace")
    return HarnessFault(f"a baseline could not be replayed: {said}", "Look at nvidia-smi; try again")
