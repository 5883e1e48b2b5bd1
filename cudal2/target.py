"""What a kernel is compiled for: language, compiler flags, the contract its source must meet."""

from functools import cache

import msgspec

from cudal2 import arch
from cudal2.arch import ARCHITECTURES, Architecture
from cudal2.contract import CPU_CONTRACT, CUDA_CONTRACT, Contract


class Target(msgspec.Struct, frozen=True):
    """One kind of machine that kernels are written for.

    `language` names the code fence a completion may use; `includes` the headers a source may name and
    `include_folders` the prefixes under which it may name any; `flags` what the compiler is given beyond what
    the worker itself needs. `architecture` is what is known of the GPU, None for a processor. `rounding` is how many
    products a matrix instruction sums before an f16 accumulator rounds.

    `kind` names the folder of `cudal2/worker` whose backend builds and runs its kernels. All else that kinds differ in
    is said here, too: the `protocols` that calls can be timed by; whether it has `devices` of its own, counted from 0,
    each of which takes a worker; whether built code is a `recipe` of launches beside a binary; and whether `assembly`
    of it can be listed and edited.
    """

    name: str
    kind: str
    language: str
    suffix: str
    contract: Contract
    flags: tuple[str, ...]
    includes: frozenset[str]
    include_folders: tuple[str, ...] = ()
    architecture: Architecture | None = None
    rounding: int = 1
    protocols: tuple[str, ...] = ("device",)
    devices: bool = False
    recipe: bool = False
    assembly: bool = False


CPU = Target(
    name="cpu",
    kind="cpu",
    language="cpp",
    suffix=".cpp",
    contract=CPU_CONTRACT,
    # No -ffast-math: it would let the compiler change what a source says about rounding and NaN.
    flags=("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast"),
    includes=frozenset(
        {
            *("immintrin.h", "x86intrin.h", "omp.h"),
            *("stdint.h", "stddef.h", "string.h", "math.h", "stdlib.h"),
            *("cstdint", "cstddef", "cstring", "cmath", "cstdlib"),
            *("algorithm", "array", "atomic", "limits", "memory", "type_traits", "utility", "vector"),
        }
    ),
)


TARGETS = {CPU.name: CPU}
"""The targets that are no NVIDIA GPU, by name. One of a new kind is a record here and a folder in `cudal2/worker`."""


@cache
def _cuda(architecture: Architecture) -> Target:
    name = architecture.name
    return Target(
        name=name,
        kind="cuda",
        language="cuda",
        suffix=".cu",
        contract=CUDA_CONTRACT,
        # No --use_fast_math: a source that wants an approximate function can name it. NDEBUG: an assert in device
        # code needs memory and functions of the device's runtime that the contract forbids.
        flags=(
            *("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr"),
            *("-gencode", f"arch={name.replace('sm', 'compute')},code={name}"),
        ),
        includes=frozenset(
            {
                *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cudaTypedefs.h", "vector_types.h"),
                *("cuda_fp16.h", "cuda_bf16.h", "mma.h", "cooperative_groups.h", "device_launch_parameters.h"),
                *("cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_awbarrier.h", "cuda_awbarrier_primitives.h"),
                *("stdint.h", "stddef.h", "string.h", "math.h", "assert.h", "limits.h", "stdlib.h"),
                *("cstdint", "cstddef", "cstring", "cmath", "cassert", "climits", "cstdlib"),
                *("algorithm", "array", "limits", "tuple", "type_traits", "utility", "vector"),
            }
        ),
        include_folders=("cute/", "cutlass/", "cuda/", "cub/", "thrust/", "nv/", "cooperative_groups/"),
        architecture=architecture,
        # One m16n8k16 (or a k16 step of wgmma) adds 16 products, then rounds.
        rounding=16,
        protocols=("device", "offline", "server"),
        devices=True,
        recipe=True,
        assembly=True,
    )


def targets() -> dict[str, Target]:
    """Everything that kernels can be written for, by name: what stands in TARGETS, and each GPU that has a record."""
    return {**TARGETS, **{name: _cuda(architecture) for name, architecture in ARCHITECTURES.items()}}


def find(name: str) -> Target:
    """The target of that name; ValueError lists the known ones."""
    known = targets()
    if name not in known:
        raise ValueError(
            f"target {name!r} is not known; choose one of {', '.join(known)}, "
            "or add its record to ARCHITECTURES in cudal2/arch.py"
        )
    return known[name]


def for_capability(major: int, minor: int) -> Target:
    """The target of a GPU of that compute capability; ValueError where it has no record (see `arch`)."""
    return _cuda(arch.for_capability(major, minor))
