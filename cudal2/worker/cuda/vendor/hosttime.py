"""Seconds of calls one by one on the host's clock, by the host-timed protocols' loop, `hosttime.cpp`: compiled on first
use, called with addresses. It knows all but the matrices' addresses before.

`offline` is one call and a synchronise on the host's clock; `server` sleeps an exponential time before each call, as
independent requests arrive (the two protocols of CUDA-L2, arXiv:2512.02551).
"""

import ctypes
import secrets
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache as memoise
from pathlib import Path
from typing import ClassVar, NamedTuple

import msgspec
from nvmath.bindings import cublas
from torch import Tensor

from cudal2.problem import Layout, Problem
from cudal2.records import HarnessFault, digest
from cudal2.worker.build import artefact, compiler, compiler_name, trusted
from cudal2.worker.cuda.vendor import lt
from cudal2.worker.gpu.history import Touches

Set = tuple[Tensor, ...]
"""(A, B, what more there is, C): A (M,K), B as its layout stores it, C (M,N)."""

CALLBACK = ctypes.CFUNCTYPE(c_int, c_int64)
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared")


class Loop(ctypes.Structure):
    """Mirrors `Loop` of hosttime.cpp; `loop` makes one."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("a", "b", "c", "bias")),
        *((name, c_int64) for name in ("sets", "calls")),
        ("mean_gap", c_double),
        ("seed", c_uint64),
        *((name, c_void_p) for name in ("synchronise", "stream", "touch", "ours", "touches")),
        ("each", c_size_t),
    ]


class Before(NamedTuple):
    """What is done before each call, outside its time: `touch(ours, &touches[call * each], each, stream)`, an exported
    function of replay.cpp."""

    touch: ctypes._CFuncPtr  # type: ignore[name-defined]
    ours: c_void_p
    touches: Touches
    each: int


class Lt(ctypes.Structure):
    """Mirrors `Lt` of hosttime.cpp: one cublasLtMatmul but for its operands. `describe` is 0 where it has no bias."""

    _fields_: ClassVar = [
        *(
            (name, c_void_p)
            for name in ("matmul", "describe", "handle", "operation", "a_layout", "b_layout", "c_layout")
        ),
        *((name, c_void_p) for name in ("alpha", "beta", "algorithm", "workspace")),
        ("workspace_bytes", c_size_t),
    ]


class GemmEx(ctypes.Structure):
    """Mirrors `GemmEx` of hosttime.cpp: one cublasGemmEx but for its matrices."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("gemm", "handle", "alpha", "beta")),
        *((name, c_int) for name in ("transa", "transb", "m", "n", "k", "lda", "ldb", "ldc")),
        *((name, c_int) for name in ("type", "compute", "algorithm")),
    ]


HostCall = Lt | GemmEx | Callable[[int], None]
"""What is called: from C, or a Python callable that gets the set's number."""


@memoise
def library() -> ctypes.CDLL:
    """hosttime.cpp, compiled and loaded. Raises HarnessFault where it cannot be."""
    source = Path(__file__).with_name("hosttime.cpp")
    key = digest(compiler_name(), *FLAGS, source.read_text())[:16]

    def make(folder: Path) -> None:
        trusted([compiler(), *FLAGS, str(source), "-o", str(folder / "hosttime.so")])

    return ctypes.CDLL(str(artefact(f"hosttime-{key}", make) / "hosttime.so"))


def seconds(
    call: HostCall,
    sets: Sequence[tuple[int, ...]],
    calls: int,
    *,
    synchronise: int,
    stream: int = 0,
    gap_seconds: float = 0.0,
    seed: int = 0,
    before: Before | None = None,
) -> list[float]:
    """Seconds on the host's clock of each of `calls` calls, each with its synchronise.

    `sets` are the addresses of (A, B, C) or (A, B, bias, C), used in turn; `synchronise` is the address of an
    `int (*)(void* stream)` such as cuStreamSynchronize; `gap_seconds` the mean of the exponential sleep before a
    call, not counted. A Python callable gets the set's number and must enqueue by itself; its overhead is counted.

    Raises ValueError where nothing is asked for, HarnessFault where a call fails, and what the callable raises.
    """
    if not sets or calls < 1 or gap_seconds < 0:
        raise ValueError(f"{len(sets)} sets, {calls} calls, a gap of {gap_seconds} s: nothing to time")
    columns = [(c_void_p * len(sets))(*column) for column in zip(*sets)]
    a, b, *more, c = (ctypes.addressof(column) for column in columns)
    loop = Loop(
        *(a, b, c, more[0] if more else None),
        *(len(sets), calls),
        *(gap_seconds * 1e9, seed, synchronise, stream),
    )
    if before:
        loop.touch, loop.ours = ctypes.cast(before.touch, c_void_p), before.ours
        loop.touches, loop.each = before.touches.ctypes.data, before.each
    out = (c_double * calls)()
    raised: list[BaseException] = []
    if isinstance(call, Lt):
        status = library().time_lt(ctypes.byref(call), ctypes.byref(loop), out)
    elif isinstance(call, GemmEx):
        status = library().time_gemm_ex(ctypes.byref(call), ctypes.byref(loop), out)
    else:

        @CALLBACK
        def guarded(number: int) -> int:
            try:
                call(number)
            except BaseException as error:  # noqa: BLE001  # raised again below: it cannot pass through C
                raised.append(error)
                return 1
            return 0

        status = library().time_callback(guarded, ctypes.byref(loop), out)
    if raised:
        raise raised[0]
    if status:
        what = f"the library returned {status}" if status > 0 else f"the synchronise or a touch returned {-status}"
        raise HarnessFault(f"a host-timed baseline failed: {what}", "Look at `nvidia-smi` and `dmesg` for GPU errors")
    return list(out)


@memoise
def stream_synchronise() -> int:
    """Address of cuStreamSynchronize. Raises HarnessFault where there is no driver."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuStreamSynchronize
    except OSError as error:
        raise HarnessFault(f"no CUDA driver: {error}", "Install the NVIDIA driver; check nvidia-smi") from error
    address = ctypes.cast(function, c_void_p).value
    assert address is not None
    return address


def gemm_ex(problem: Problem, layout: Layout, handle: int) -> GemmEx:
    """cublasGemmEx with a cuBLAS handle that has its stream and workspace."""
    alpha, beta = lt.scalars(problem.accumulate)
    gemm, (compute, _) = lt.column_major(problem, layout), lt.COMPUTE[problem.accumulate]
    return GemmEx(
        *(lt.function_address("cublasGemmEx"), handle, alpha, beta),
        *msgspec.structs.astuple(gemm),
        *(lt.type_of(problem), compute, cublas.GemmAlgo.DFALT),
    )


def matmul(problem: Problem, plan: lt.Plan, algorithm: lt.Algorithm, workspace: int) -> Lt:
    """cublasLtMatmul with a workspace of `lt.WORKSPACE` bytes at that address. Plan and algorithm must outlive it."""
    describe = lt.function_address("cublasLtMatmulDescSetAttribute") if plan.biased else None
    alpha, beta = lt.scalars(problem.accumulate)
    return Lt(
        *(lt.function_address("cublasLtMatmul"), describe, plan.handle, plan.operation, plan.a, plan.b, plan.c),
        *(alpha, beta, algorithm.address, workspace, lt.WORKSPACE),
    )


def set_seconds(
    call: HostCall,
    sets: Sequence[Set],
    calls: int,
    stream: int,
    gap_seconds: float,
    before: Before | None = None,
) -> list[float]:
    """`seconds` of each of `calls` calls on sets in turn, each with its synchronise of `stream`."""
    return seconds(
        call,
        [tuple(tensor.data_ptr() for tensor in one) for one in sets],
        calls,
        synchronise=stream_synchronise(),
        stream=stream,
        gap_seconds=gap_seconds,
        seed=secrets.randbits(63),
        before=before,
    )
