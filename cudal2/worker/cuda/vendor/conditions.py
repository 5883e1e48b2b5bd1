"""Under which conditions the vendor's libraries are called, and what their speed depends on."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from msgspec.structs import replace
from nvmath.bindings import cublas, cublasLt

from cudal2 import operators
from cudal2.exported import processor
from cudal2.problem import Layout, Problem
from cudal2.records import digest
from cudal2.worker import inputs
from cudal2.worker.cuda import device, settings
from cudal2.worker.cuda.vendor import lt
from cudal2.worker.cuda.vendor.clock import Set

METHOD = "3"
"""Part of every cache key: raise it when what is tuned or how changes."""


def cache_key(problem: Problem, model: str, multiprocessors: int, versions: str) -> str:
    """Where a problem's tuning is kept. Both layouts are tuned together, so the problem's own plays no part."""
    gpu = processor.gpu_name(model, multiprocessors)
    kind = [word for word in (problem.dtype, problem.epilogue) if word not in ("fp16", "none")]
    return digest(METHOD, str(lt.WORKSPACE), problem.mnk, problem.accumulate, *kind, gpu, versions)


def check_sets(problem: Problem, layout: Layout, sets: Sequence[Set]) -> None:
    """Raises ValueError where a set is not (A, B, …, C) as the libraries are told: contiguous, aligned."""
    expected, kind = operators.operands(replace(problem, layout=layout)), inputs.element(problem)
    if not sets:
        raise ValueError("no buffer sets to time on")
    for tensors in sets:
        for operand, tensor in zip(expected, tensors, strict=True):
            name, shape, aligned = operand.name, operand.shape, lt.alignment(1, operand.elements)
            if tensor.dtype != kind or tuple(tensor.shape) != shape or not tensor.is_contiguous():
                have = f"{tuple(tensor.shape)} {tensor.dtype}"
                raise ValueError(f"{name} is {have}: want contiguous {problem.dtype} {shape}")
            if tensor.data_ptr() % aligned:
                raise ValueError(f"{name} at {tensor.data_ptr():#x} is not aligned to {aligned} bytes")


@contextmanager
def torch_flags(problem: Problem) -> Iterator[None]:
    """torch with the problem's accumulator: in f32 nothing is ever added up in 16 bits, in f16 everything may be."""
    flags, half = torch.backends.cuda.matmul, problem.accumulate == "f16"
    accumulation = flags.allow_fp16_accumulation
    names = [f"allow_{one}_reduced_precision_reduction" for one in ("fp16", "bf16")]
    reductions = [(getattr(flags, name), getattr(flags, f"{name}_split_k")) for name in names]
    flags.allow_fp16_accumulation = half
    for name in names:
        setattr(flags, name, (half, True))
    try:
        yield
    finally:
        flags.allow_fp16_accumulation = accumulation
        for name, reduction in zip(names, reductions):
            setattr(flags, name, reduction)


def library_versions(handle: int) -> str:
    """`torch 2.11.0, cuBLAS 13.1.0, …` with a cuBLAS handle at hand, and what else decides their speed.

    Raises HarnessFault without a driver.
    """
    blas, blas_lt = (
        f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        for version in (cublas.get_version(handle), cublasLt.get_version())
    )
    gpu = device.find()
    versions = f"torch {torch.__version__}, cuBLAS {blas}, cuBLASLt {blas_lt}, driver {gpu.driver}"
    return ", ".join((versions, settings.power(gpu.uuid), *settings.variables(os.environ)))
