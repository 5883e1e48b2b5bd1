"""cuBLASLt: how a row-major product is put to a column-major library, and which of its algorithms is fastest.

Everything passed to the library is an integer address or an enum's value; argument orders are those of `cublasLt.h`
(https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api), bound by nvmath-python.
"""

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache as memoise

import msgspec
import numpy as np
import torch
from nvmath.bindings import cublas, cublasLt
from nvmath.bindings._internal import cublas as cublas_symbols
from nvmath.bindings._internal import cublasLt as cublasLt_symbols
from torch import Tensor

from cudal2.problem import Accumulate, Layout, Problem
from cudal2.records import HarnessFault
from cudal2.worker import timing

log = logging.getLogger(__name__)

Set = tuple[Tensor, Tensor, Tensor]
"""(A, B, C): A (M,K), B as its layout stores it, C (M,N)."""
Enqueue = Callable[[Tensor, Tensor, Tensor], None]
"""Enqueues one C = A·B on torch's current stream."""

WORKSPACE = 32 << 20
"""Bytes. What NVIDIA recommends and cuBLAS and torch take by themselves on Hopper, so that no baseline is held back and
none is favoured: https://docs.nvidia.com/cuda/cublas/#cublassetworkspace"""

R_32F, R_16F = 0, 2  # cudaDataType in library_types.h
COMPUTE: dict[Accumulate, tuple[int, int]] = {
    "f32": (cublas.ComputeType.COMPUTE_32F, R_32F),
    "f16": (cublas.ComputeType.COMPUTE_16F, R_16F),
}
"""Compute type and the type of alpha and beta."""

SPLIT_K: dict[Accumulate, int] = {
    "f32": cublasLt.ReductionScheme.COMPUTE_TYPE,
    "f16": cublasLt.ReductionScheme.MASK,
}
"""How partial sums over K may be added up. In an f32 problem never in fp16, as "in place" and "output type" do; torch's
`allow_fp16_reduced_precision_reduction=False` stands for the same rule. Not splitting is always allowed."""

REQUESTED = 100
"""Algorithms tuned over, as CUDA-L2 does (arXiv:2512.02551)."""
QUICK_SECONDS, QUICK_CALLS, QUICK_BATCH = 3.0, 32, 0.3e-3
"""The pass over all of them: wall time after which no further one is tried (the library's order is a good guess),
most calls in a graph, and the device time a graph is filled up to."""
HOPELESS, GRACE = 3.0, 20e-3
"""An algorithm whose first call took so many times the best's and so many seconds more is not timed."""
FINALISTS, FINE_ROUNDS = 5, 7

_SCALARS: dict[Accumulate, np.ndarray] = {"f32": np.array([1, 0], np.float32), "f16": np.array([1, 0], np.float16)}


def scalars(accumulate: Accumulate) -> tuple[int, int]:
    """Addresses of alpha = 1 and beta = 0 on the host. They live as long as the module, so past every call."""
    array = _SCALARS[accumulate]
    return array.ctypes.data, array.ctypes.data + array.itemsize


class Gemm(msgspec.Struct, frozen=True):
    """A column-major product C = op(A)·op(B) of m×n, as BLAS writes it; leading dimensions in elements."""

    transa: int
    transb: int
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int


def column_major(problem: Problem, layout: Layout) -> Gemm:
    """The BLAS call for a row-major C[M,N] = A[M,K]·B, with B stored in `layout` whatever the problem's own.

    A row-major matrix is its transpose in column-major order, so the call is Cᵀ = Bᵀ·Aᵀ: the library's first operand
    is our B. Stored K×N it is already Bᵀ (N×K); stored N×K it is B and gets transposed.
    """
    m, n, k = problem.m, problem.n, problem.k
    transa, lda = (cublas.Operation.N, n) if layout == "nn" else (cublas.Operation.T, k)
    return Gemm(int(transa), int(cublas.Operation.N), m=n, n=m, k=k, lda=lda, ldb=k, ldc=n)


def alignment(rows: int, columns: int) -> int:
    """Bytes that fp16 matrices of this size are aligned to, packed one behind another: 256, or less for odd sizes.

    256 is the most that cuBLASLt asks about, and what it assumes unless told.
    """
    size = 2 * rows * columns
    return min(256, size & -size)


class Algorithm(msgspec.Struct, frozen=True):
    """A cublasLtMatmulAlgo_t: 64 opaque bytes, valid for the library version and device that made them."""

    data: bytes
    buffer: np.ndarray

    @staticmethod
    def of(data: bytes) -> "Algorithm":
        """Raises ValueError where these are not as many bytes as the structure has."""
        if len(data) != 64:
            raise ValueError(f"{len(data)} bytes are no cublasLtMatmulAlgo_t")
        return Algorithm(data, np.frombuffer(data, np.uint64).copy())  # a copy stands aligned

    @property
    def address(self) -> int:
        return self.buffer.ctypes.data


class Plan:
    """The descriptors of one problem with B stored in one layout. They are small and live as long as the process."""

    def __init__(self, handle: int, problem: Problem, layout: Layout) -> None:
        gemm, compute = column_major(problem, layout), COMPUTE[problem.accumulate]
        self.handle = handle
        self.alpha, self.beta = scalars(problem.accumulate)
        self.operation: int = cublasLt.matmul_desc_create(*compute)
        for attribute, value in (
            (cublasLt.MatmulDescAttribute.TRANSA, gemm.transa),
            (cublasLt.MatmulDescAttribute.TRANSB, gemm.transb),
        ):
            operation = np.array([value], np.int32)
            cublasLt.matmul_desc_set_attribute(self.operation, attribute, operation.ctypes.data, operation.nbytes)
        # Rows and columns as stored, before any transposition.
        stored = (gemm.m, gemm.k) if gemm.transa == cublas.Operation.N else (gemm.k, gemm.m)
        self.a: int = cublasLt.matrix_layout_create(R_16F, *stored, gemm.lda)
        self.b: int = cublasLt.matrix_layout_create(R_16F, gemm.k, gemm.n, gemm.ldb)
        self.c: int = cublasLt.matrix_layout_create(R_16F, gemm.m, gemm.n, gemm.ldc)
        self._matrices = (self.operation, self.a, self.b, self.c, self.c)
        self._preference: int = cublasLt.matmul_preference_create()
        limits = cublasLt.MatmulPreferenceAttribute
        words = {
            limits.MIN_ALIGNMENT_A_BYTES: alignment(*stored),
            limits.MIN_ALIGNMENT_B_BYTES: alignment(gemm.k, gemm.n),
            limits.MIN_ALIGNMENT_C_BYTES: alignment(gemm.m, gemm.n),
            limits.MIN_ALIGNMENT_D_BYTES: alignment(gemm.m, gemm.n),
            limits.REDUCTION_SCHEME_MASK: SPLIT_K[problem.accumulate],
        }
        values = {attribute: np.array([value], np.uint32) for attribute, value in words.items()}
        values[limits.MAX_WORKSPACE_BYTES] = np.array([WORKSPACE], np.uint64)
        for attribute, array in values.items():
            cublasLt.matmul_preference_set_attribute(self._preference, attribute, array.ctypes.data, array.nbytes)

    def heuristics(self, count: int) -> list[Algorithm]:
        """Up to `count` algorithms, the one the library thinks fastest first; at least one.

        Raises HarnessFault where the library knows none.
        """
        results, found = np.zeros(count, cublasLt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        cublasLt.matmul_algo_get_heuristic(
            self.handle, *self._matrices, self._preference, count, results.ctypes.data, found.ctypes.data
        )
        # A result's `state` is its own cublasStatus_t.
        algorithms = [Algorithm.of(row["algo"].tobytes()) for row in results[: found[0]] if row["state"] == 0]
        if not algorithms:
            raise HarnessFault("cuBLASLt offers no algorithm", "Is this GPU supported by the installed cuBLAS?")
        return algorithms

    def accepts(self, algorithm: Algorithm) -> bool:
        """Whether the library would run it here, within WORKSPACE."""
        result = np.zeros(1, cublasLt.matmul_heuristic_result_dtype)
        try:
            cublasLt.matmul_algo_check(self.handle, *self._matrices, algorithm.address, result.ctypes.data)
        except cublasLt.cuBLASLtError:
            return False
        return int(result[0]["state"]) == 0 and int(result[0]["workspace_size"]) <= WORKSPACE

    def enqueue(self, algorithm: Algorithm, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """One product of the matrices at these device addresses (ours: A row-major, B as stored, C row-major).

        Raises cuBLASLtError.
        """
        cublasLt.matmul(
            *(self.handle, self.operation, self.alpha),
            *(b, self.a, a, self.b),
            *(self.beta, c, self.c, c, self.c),
            *(algorithm.address, workspace, WORKSPACE, stream),
        )


@memoise
def function_address(name: str) -> int:
    """Address of `cublasLtMatmul` or `cublasGemmEx` in the very library whose handles nvmath-python makes.

    Raises HarnessFault where nvmath-python no longer tells.
    """
    symbols = cublasLt_symbols if name.startswith("cublasLt") else cublas_symbols
    address = symbols._inspect_function_pointers().get(f"__{name}")
    if not address:
        raise HarnessFault(f"nvmath-python does not know where {name} is", "Install nvmath-python 1.0")
    return address


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
            buffers[2].fill_(float("nan"))
            enqueue(*buffers)
        self.stream.synchronize()
        return buffers[2]

    def graph(self, enqueue: Enqueue, sets: Sequence[Set]) -> torch.cuda.CUDAGraph:
        """One call on each of the sets, in turn. `enqueue` has run before: nothing may be loaded during capture.

        Not through `torch.cuda.graph`, which collects garbage and empties torch's pool at every capture.
        """
        graph = torch.cuda.CUDAGraph()
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
        return self._seconds(graph, 1, self._flush.zero_) / calls

    def steady(self, graph: torch.cuda.CUDAGraph, calls: int, replays: int) -> float:
        """Seconds a call over back-to-back replays of a graph whose sets together exceed the L2."""
        return self._seconds(graph, replays, graph.replay) / (calls * replays)

    def _seconds(self, graph: torch.cuda.CUDAGraph, replays: int, ahead: Callable[[], object]) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.stream):
            ahead()  # while it runs the host gets ahead of the GPU: no launch latency between the events
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def tolerance(problem: Problem) -> float:
    """Largest relative RMS difference between two right results on zero-mean random inputs.

    Rounding to fp16 is 2⁻¹¹/√3 at most; accumulating in fp16 multiplies it by about √(K/32 + ½). Two results differ by
    √2 of that; three times as much is allowed.
    """
    growth = 1.0 if problem.accumulate == "f32" else (problem.k / 32 + 0.5) ** 0.5
    return 3 * 2**0.5 * 2**-11 / 3**0.5 * growth


def difference(result: Tensor, reference: Tensor) -> float:
    """RMS(result − reference) / RMS(reference); NaN where either holds a NaN or an infinity."""
    norm = torch.linalg.vector_norm
    error = float(norm(result - reference, dtype=torch.float32))
    return error / (float(norm(reference, dtype=torch.float32)) or 1.0)


def shortlist(quick: dict[int, float]) -> list[int]:
    """The FINALISTS fastest, and number 0 (the library's own first choice), so that tuning never loses to it."""
    return sorted({0, *sorted(quick, key=lambda number: quick[number])[:FINALISTS]})


def fastest(rounds: dict[int, list[float]]) -> int:
    """The number with the smallest median; the library's order decides between equals."""
    return min(sorted(rounds), key=lambda number: statistics.median(rounds[number]))


def tune(
    problem: Problem, clock: DeviceClock, sets: Sequence[Set], algorithms: Sequence[tuple[Algorithm, Enqueue]]
) -> Algorithm:
    """The fastest of `algorithms`, each with what enqueues it, the library's first choice first.

    All are timed briefly and L2-cold, until QUICK_SECONDS are over; then the best few in turn, so that a drift of the
    clocks meets all alike. One that fails, or whose result differs from the first's, is dropped.

    Raises ValueError where the inputs give no finite result, cuBLASLtError where the first algorithm fails.
    """
    ways = [enqueue for _, enqueue in algorithms]
    reference = clock.run(ways[0], sets[0]).clone()
    if difference(reference, reference) != 0:
        raise ValueError("A·B is not finite: tuning wants zero-mean inputs of moderate size")
    guess = clock.cold(clock.graph(ways[0], sets[:1]), 1)
    window = sets[: timing.calls_for(guess, QUICK_BATCH, QUICK_CALLS)]
    started, quick = time.perf_counter(), dict[int, float]()
    for number, enqueue in enumerate(ways):
        if quick and time.perf_counter() - started > QUICK_SECONDS:
            log.info("%s: tuned over the first %d of %d algorithms", problem.name, number, len(ways))
            break
        if _worth_timing(problem, clock, enqueue, sets[0], reference, min(quick.values(), default=guess)):
            quick[number] = clock.cold(clock.graph(enqueue, window), len(window))
    rounds: dict[int, list[float]] = {number: [] for number in shortlist(quick)}
    graphs = {number: clock.graph(ways[number], window) for number in rounds}
    for _ in range(FINE_ROUNDS):
        for number, graph in graphs.items():
            rounds[number].append(clock.cold(graph, len(window)))
    return algorithms[fastest(rounds)][0]


def _worth_timing(
    problem: Problem, clock: DeviceClock, enqueue: Enqueue, buffers: Set, reference: Tensor, best: float
) -> bool:
    """Whether an algorithm's first call succeeds, is right and is not hopelessly slow."""
    started = time.perf_counter()
    try:
        result = clock.run(enqueue, buffers)
    except cublasLt.cuBLASLtError as error:
        log.debug("%s: an algorithm of cuBLASLt fails: %s", problem.name, error)
        return False
    if time.perf_counter() - started > HOPELESS * best + GRACE:
        return False
    right = difference(result, reference) <= tolerance(problem)  # False for a NaN
    if not right:
        log.warning("%s: an algorithm of cuBLASLt gives a wrong result", problem.name)
    return right
