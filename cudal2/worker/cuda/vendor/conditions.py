"""Under which conditions the vendor's libraries are called, and what decides how fast they and a GPU are, beside the
hardware."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import UUID

import torch
from msgspec.structs import replace
from nvmath.bindings import cublas, cublasLt

from cudal2 import operators
from cudal2.exported import processor
from cudal2.problem import Layout, Problem
from cudal2.records import HarnessFault, digest
from cudal2.worker import inputs
from cudal2.worker.cuda import device
from cudal2.worker.cuda.vendor import lt
from cudal2.worker.cuda.vendor.hosttime import Set

UNKNOWN = "power limit unknown"
SMI_SECONDS = 60.0
"""For nvidia-smi, which takes one or two where its daemon does not run."""

_READ = re.compile(r"CUDA_|CUBLAS|NVIDIA_TF32_OVERRIDE$|TORCH_BLAS|TORCH_ALLOW_TF32|DISABLE_ADDMM_CUDA_LT$|LD_PRELOAD$")
_PLACES = re.compile(
    r"CUDA_(?:\w*(?:HOME|PATH|DIR|ROOT|VERSION)|CACHE_\w+|VISIBLE_DEVICES|DEVICE_ORDER|MODULE_LOADING"
    r"|DEVICE_MAX_CONNECTIONS)$|CUBLAS\w*_VERSION$"
)
"""Where things lie, which GPU is seen (it has its own key), and what frameworks set for themselves that only matters to
the first call or to several streams: all calls here are warm, and in one."""
METHOD = "4"
"""Part of every cache key: raise it when what is tuned or how changes."""


def speed_variables(environment: Mapping[str, str]) -> list[str]:
    """`NAME=value` of each variable that the driver or a library reads and that may change what it does or how fast.

    The vendor's libraries run in the worker's own process, with the caller's variables: figures made under some are
    figures of another environment.
    """
    names = (name for name in environment if _READ.match(name) and not _PLACES.match(name))
    return [f"{name}={environment[name]}" for name in sorted(names) if environment[name]]


def power_limit(uuid: str) -> str:
    """`power limit 700.00 W, clock up to 1980 MHz` of the GPU of that uuid (hex); UNKNOWN where it cannot be read.

    Raises HarnessFault where nvidia-smi does not end: a key must not depend on how busy a machine was.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return UNKNOWN
    query = [program, f"--id=GPU-{UUID(uuid)}", "--query-gpu=power.limit,clocks.max.sm", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise HarnessFault("nvidia-smi does not answer", "Look at the GPU with nvidia-smi") from error
    values = [value.strip() for value in done.stdout.split(",")]
    if done.returncode or len(values) != 2 or "W" not in values[0]:
        return UNKNOWN
    return f"power limit {values[0]}, clock up to {values[1]}"


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
    return ", ".join((versions, power_limit(gpu.uuid), *speed_variables(os.environ)))
