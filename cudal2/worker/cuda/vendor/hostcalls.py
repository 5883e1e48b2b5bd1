"""The vendor's calls as the host-timed loop makes them: everything but the matrices' addresses is known before it."""

import secrets
from collections.abc import Callable, Sequence

import msgspec
from nvmath.bindings import cublas

from cudal2.problem import Layout, Problem
from cudal2.worker.cuda.vendor import hosttime, lt
from cudal2.worker.cuda.vendor.clock import Set

Call = hosttime.Lt | hosttime.GemmEx | Callable[[int], None]
"""What `hosttime.seconds` calls: from C, or a Python callable that gets the set's number."""


def gemm_ex(problem: Problem, layout: Layout, handle: int) -> hosttime.GemmEx:
    """cublasGemmEx with a cuBLAS handle that has its stream and workspace."""
    alpha, beta = lt.scalars(problem.accumulate)
    gemm, (compute, _) = lt.column_major(problem, layout), lt.COMPUTE[problem.accumulate]
    return hosttime.GemmEx(
        *(lt.function_address("cublasGemmEx"), handle, alpha, beta),
        *msgspec.structs.astuple(gemm),
        *(lt.type_of(problem), compute, cublas.GemmAlgo.DFALT),
    )


def matmul(problem: Problem, plan: lt.Plan, algorithm: lt.Algorithm, workspace: int) -> hosttime.Lt:
    """cublasLtMatmul with a workspace of `lt.WORKSPACE` bytes at that address. Plan and algorithm must outlive it."""
    describe = lt.function_address("cublasLtMatmulDescSetAttribute") if plan.biased else None
    alpha, beta = lt.scalars(problem.accumulate)
    return hosttime.Lt(
        *(lt.function_address("cublasLtMatmul"), describe, plan.handle, plan.operation, plan.a, plan.b, plan.c),
        *(alpha, beta, algorithm.address, workspace, lt.WORKSPACE),
    )


def seconds(
    call: Call,
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
