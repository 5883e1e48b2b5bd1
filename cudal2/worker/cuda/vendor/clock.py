"""Seconds of the vendor's calls: on the GPU's own clock, from graphs of calls between two events, and one by one on the
host's clock, in a loop that knows all but the matrices' addresses before."""

import secrets
from collections.abc import Callable, Sequence

import msgspec
import torch
from nvmath.bindings import cublas
from torch import Tensor

from cudal2.problem import Layout, Problem
from cudal2.worker.cuda.vendor import hosttime, lt

Set = tuple[Tensor, ...]
"""(A, B, what more there is, C): A (M,K), B as its layout stores it, C (M,N)."""
Enqueue = Callable[..., None]
"""Enqueues one call on a set's tensors on torch's current stream."""

SPIN_CYCLES = 300_000
"""About 150 µs at 2 GHz, in which the host gets ahead of the GPU; the runner spins as long."""
HostCall = hosttime.Lt | hosttime.GemmEx | Callable[[int], None]
"""What `hosttime.seconds` calls: from C, or a Python callable that gets the set's number."""


class DeviceClock:
    """Seconds a call on the GPU, from graphs of calls between two events. Has a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        # Writing it empties the L2 and keeps the GPU busy while the host launches a graph.
        size = 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(size, dtype=torch.uint8, device=device)

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
        """Seconds a call of a short graph of `calls`, whose sets need not exceed the L2."""
        return self._seconds(graph, self._flush.zero_) / calls

    def replay(self, graph: torch.cuda.CUDAGraph) -> float:
        """Seconds of one replay of a graph whose sets together exceed the L2."""
        return self._seconds(graph, lambda: torch.cuda._sleep(SPIN_CYCLES))

    def take_turn(self) -> None:
        """Have the GPU turn to this process from another's, which takes tens of microseconds, and wait for it."""
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(SPIN_CYCLES)
        self.stream.synchronize()

    def _seconds(self, graph: torch.cuda.CUDAGraph, ahead: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            ahead()  # while it runs the host gets ahead of the GPU: no launch latency between the events
            start.record()
            graph.replay()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def host_gemm_ex(problem: Problem, layout: Layout, handle: int) -> hosttime.GemmEx:
    """cublasGemmEx with a cuBLAS handle that has its stream and workspace."""
    alpha, beta = lt.scalars(problem.accumulate)
    gemm, (compute, _) = lt.column_major(problem, layout), lt.COMPUTE[problem.accumulate]
    return hosttime.GemmEx(
        *(lt.function_address("cublasGemmEx"), handle, alpha, beta),
        *msgspec.structs.astuple(gemm),
        *(lt.type_of(problem), compute, cublas.GemmAlgo.DFALT),
    )


def host_matmul(problem: Problem, plan: lt.Plan, algorithm: lt.Algorithm, workspace: int) -> hosttime.Lt:
    """cublasLtMatmul with a workspace of `lt.WORKSPACE` bytes at that address. Plan and algorithm must outlive it."""
    describe = lt.function_address("cublasLtMatmulDescSetAttribute") if plan.biased else None
    alpha, beta = lt.scalars(problem.accumulate)
    return hosttime.Lt(
        *(lt.function_address("cublasLtMatmul"), describe, plan.handle, plan.operation, plan.a, plan.b, plan.c),
        *(alpha, beta, algorithm.address, workspace, lt.WORKSPACE),
    )


def host_seconds(
    call: HostCall,
    sets: Sequence[Set],
    calls: int,
    stream: int,
    gap_seconds: float,
    before: hosttime.Before | None = None,
) -> list[float]:
    """Seconds on the host's clock of each of `calls` calls with their synchronise of `stream`: `hosttime.seconds`."""
    return hosttime.seconds(
        call,
        [tuple(tensor.data_ptr() for tensor in one) for one in sets],
        calls,
        synchronise=hosttime.stream_synchronise(),
        stream=stream,
        gap_seconds=gap_seconds,
        seed=secrets.randbits(63),
        before=before,
    )
