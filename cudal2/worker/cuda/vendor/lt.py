"""cuBLASLt: how a row-major product is put to a column-major library.

Everything passed to the library is an integer address or an enum's value; argument orders are those of `cublasLt.h`
(https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api), bound by nvmath-python.
"""

from collections.abc import Sequence
from functools import cache as memoise

import msgspec
import numpy as np
import torch  # noqa: F401  # before nvmath's first call, so that both use the one cuBLAS that torch has loaded
from nvmath.bindings import cublas, cublasLt
from nvmath.bindings._internal import cublas as cublas_symbols
from nvmath.bindings._internal import cublasLt as cublasLt_symbols

from cudal2 import operators
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.records import HarnessFault

ALIGNED = 1 << 40
"""Stands for a bias's address, which begins at as round a number, until a call brings its own."""
WORKSPACE = 32 << 20
"""Bytes. What NVIDIA recommends and cuBLAS and torch take by themselves on Hopper, so that no baseline is held back and
none is favoured: https://docs.nvidia.com/cuda/cublas/#cublassetworkspace"""

R_32F = 0  # cudaDataType in library_types.h
TYPES = {"CUDA_R_16F": 2, "CUDA_R_16BF": 14}
COMPUTE: dict[Accumulate, tuple[int, int]] = {
    "f32": (cublas.ComputeType.COMPUTE_32F, R_32F),
    "f16": (cublas.ComputeType.COMPUTE_16F, TYPES["CUDA_R_16F"]),
}
"""Compute type and the type of alpha and beta."""

SPLIT_K: dict[Accumulate, int] = {
    "f32": cublasLt.ReductionScheme.COMPUTE_TYPE,
    "f16": cublasLt.ReductionScheme.MASK,
}
"""How partial sums over K may be added up. In an f32 problem never in fp16, as "in place" and "output type" do; torch's
`allow_fp16_reduced_precision_reduction=False` stands for the same rule. Not splitting is always allowed."""


_SCALARS: dict[Accumulate, np.ndarray] = {"f32": np.array([1, 0], np.float32), "f16": np.array([1, 0], np.float16)}


def scalars(accumulate: Accumulate) -> tuple[int, int]:
    """Addresses of alpha = 1 and beta = 0 on the host. They live as long as the module, so past every call."""
    array = _SCALARS[accumulate]
    return array.ctypes.data, array.ctypes.data + array.itemsize


def type_of(problem: Problem) -> int:
    """The cudaDataType of all matrices."""
    return TYPES[problem.type.blas]


def epilogue(problem: Problem) -> int:
    """cuBLASLt's number for what follows the product; ValueError where it has none."""
    name = operators.find(problem.epilogue).lt
    if not name:
        raise ValueError(f"cuBLASLt has no epilogue {problem.epilogue}")
    return int(cublasLt.Epilogue[name])


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

    A row-major matrix is its transpose in column-major order, so the call is Cᵀ = Bᵀ·Aᵀ, and `layout` is its transa and
    transb (`Problem`): the library's first operand
    is the problem's B. Stored K×N it is already Bᵀ (N×K); stored N×K it is B and gets transposed.
    """
    m, n, k = problem.m, problem.n, problem.k
    transa, lda = (cublas.Operation.N, n) if layout == "nn" else (cublas.Operation.T, k)
    return Gemm(int(transa), int(cublas.Operation.N), m=n, n=m, k=k, lda=lda, ldb=k, ldc=n)


def alignment(rows: int, columns: int) -> int:
    """Bytes that matrices of 16-bit numbers are aligned to, packed one behind another: 256, or less for odd sizes.

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
        gemm, compute, kind = column_major(problem, layout), COMPUTE[problem.accumulate], type_of(problem)
        self.handle = handle
        self.alpha, self.beta = scalars(problem.accumulate)
        self.operation: int = cublasLt.matmul_desc_create(*compute)
        self.biased = "BIAS" in operators.find(problem.epilogue).lt
        attributes = cublasLt.MatmulDescAttribute
        self._describe(attributes.TRANSA, gemm.transa, np.int32)
        self._describe(attributes.TRANSB, gemm.transb, np.int32)
        if problem.epilogue != "none":
            self._describe(attributes.EPILOGUE, epilogue(problem), np.uint32)
        if self.biased:
            # Along the rows of the column-major C: our N. An address must be there before an algorithm is asked for.
            self.point_at(ALIGNED)
        # Rows and columns as stored, before any transposition.
        stored = (gemm.m, gemm.k) if gemm.transa == cublas.Operation.N else (gemm.k, gemm.m)
        self.a: int = cublasLt.matrix_layout_create(kind, *stored, gemm.lda)
        self.b: int = cublasLt.matrix_layout_create(kind, gemm.k, gemm.n, gemm.ldb)
        self.c: int = cublasLt.matrix_layout_create(kind, gemm.m, gemm.n, gemm.ldc)
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
        for attribute, value in words.items():
            self._prefer(attribute, value, np.uint32)

    def _describe(self, attribute: int, value: int, width: type) -> None:
        word: np.ndarray = np.array([value], width)
        cublasLt.matmul_desc_set_attribute(self.operation, attribute, word.ctypes.data, word.nbytes)

    def _prefer(self, attribute: int, value: int, width: type) -> None:
        word: np.ndarray = np.array([value], width)
        cublasLt.matmul_preference_set_attribute(self._preference, attribute, word.ctypes.data, word.nbytes)

    def point_at(self, bias: int) -> None:
        """Have the next call add the vector at this device address."""
        self._describe(cublasLt.MatmulDescAttribute.BIAS_POINTER, bias, np.uint64)

    def first(self) -> Algorithm:
        """The one that the library thinks fastest. Raises HarnessFault where it knows none."""
        algorithms = self.heuristics(1)
        if not algorithms:
            raise HarnessFault("cuBLASLt offers no algorithm", "Is this GPU supported by the installed cuBLAS?")
        return algorithms[0]

    def heuristics(self, count: int, workspace: int | None = None) -> list[Algorithm]:
        """Up to `count` algorithms that need no more bytes of workspace (WORKSPACE unless told), the one the library
        thinks fastest first."""
        limit = WORKSPACE if workspace is None else workspace
        self._prefer(cublasLt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, limit, np.uint64)
        results, found = np.zeros(count, cublasLt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        cublasLt.matmul_algo_get_heuristic(
            self.handle, *self._matrices, self._preference, count, results.ctypes.data, found.ctypes.data
        )
        # A result's `state` is its own cublasStatus_t.
        return [Algorithm.of(row["algo"].tobytes()) for row in results[: found[0]] if row["state"] == 0]

    def accepts(self, algorithm: Algorithm) -> bool:
        """Whether the library would run it here, within WORKSPACE."""
        result = np.zeros(1, cublasLt.matmul_heuristic_result_dtype)
        try:
            cublasLt.matmul_algo_check(self.handle, *self._matrices, algorithm.address, result.ctypes.data)
        except cublasLt.cuBLASLtError:
            return False
        return int(result[0]["state"]) == 0 and int(result[0]["workspace_size"]) <= WORKSPACE

    def enqueue(self, algorithm: Algorithm, given: Sequence[int], workspace: int, stream: int) -> None:
        """One call on the operands at these device addresses (A row-major, B as stored, a bias if there is one, C
        row-major).

        Raises cuBLASLtError.
        """
        a, b, *more, c = given
        if self.biased:
            self.point_at(more[0])
        cublasLt.matmul(
            *(self.handle, self.operation, self.alpha),
            *(b, self.a, a, self.b),
            *(self.beta, c, self.c, c, self.c),
            *(algorithm.address, workspace, WORKSPACE, stream),
        )


@memoise
def function_address(name: str) -> int:
    """Address of `cublasLtMatmul`, for example, in the very library whose handles nvmath-python makes.

    Raises HarnessFault where nvmath-python no longer tells.
    """
    symbols = cublasLt_symbols if name.startswith("cublasLt") else cublas_symbols
    address = symbols._inspect_function_pointers().get(f"__{name}")
    if not address:
        raise HarnessFault(f"nvmath-python does not know where {name} is", "Install nvmath-python 1.0")
    return address
