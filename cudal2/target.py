"""What a kernel is compiled for: language, compiler flags, the contract its source must meet."""

from typing import Literal

import msgspec

SEMAPHORES = 16 << 10
"""Bytes at the head of a CUDA kernel's workspace that are zero on entry and must be on exit."""


class Target(msgspec.Struct, frozen=True):
    """One kind of machine that kernels are written for.

    `language` names the code fence a completion may use; `includes` the headers a source may name and
    `include_folders` the prefixes under which it may name any; `flags` what the compiler is given beyond what
    the worker itself needs; `families` the folders of `data/families/` whose kernels run on it.
    `arch` is the compiler's name for a GPU (`sm_90a`), empty for a processor. `rounding` is how many products
    a matrix instruction sums before an f16 accumulator rounds.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    language: str
    suffix: str
    signature: str
    flags: tuple[str, ...]
    includes: frozenset[str]
    families: tuple[str, ...]
    include_folders: tuple[str, ...] = ()
    arch: str = ""
    rounding: int = 1

    @property
    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability: (9, 0) for sm_90a; (0, 0) for a processor."""
        return divmod(int(self.arch.strip("sm_a") or 0), 10)


CPU = Target(
    name="cpu",
    kind="cpu",
    language="cpp",
    suffix=".cpp",
    signature=(
        'extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace)'
    ),
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
    families=("cpu",),
)


def _cuda(arch: str, families: tuple[str, ...] = ("sm_80",)) -> Target:
    return Target(
        name=arch,
        kind="cuda",
        language="cuda",
        suffix=".cu",
        signature=(
            'extern "C" cudaError_t hgemm(const __half* A, const __half* B, __half* C, int M, int N, int K, '
            "void* workspace, cudaStream_t stream)"
        ),
        # No --use_fast_math: a source that wants an approximate function can name it. NDEBUG: an assert in device
        # code needs memory and functions of the device's runtime that the contract forbids.
        flags=(
            *("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr"),
            *("-gencode", f"arch={arch.replace('sm', 'compute')},code={arch}"),
        ),
        includes=frozenset(
            {
                *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "cudaTypedefs.h", "vector_types.h"),
                *("cuda_fp16.h", "mma.h", "cooperative_groups.h", "device_launch_parameters.h"),
                *("cuda_pipeline.h", "cuda_pipeline_primitives.h", "cuda_awbarrier.h", "cuda_awbarrier_primitives.h"),
                *("stdint.h", "stddef.h", "string.h", "math.h", "assert.h", "limits.h", "stdlib.h"),
                *("cstdint", "cstddef", "cstring", "cmath", "cassert", "climits", "cstdlib"),
                *("algorithm", "array", "limits", "tuple", "type_traits", "utility", "vector"),
            }
        ),
        include_folders=("cute/", "cutlass/", "cuda/", "cub/", "thrust/", "nv/", "cooperative_groups/"),
        families=families,
        arch=arch,
        # One m16n8k16 (or a k16 step of wgmma) adds 16 products, then rounds.
        rounding=16,
    )


TARGETS = {
    target.name: target
    for target in (
        CPU,
        _cuda("sm_80"),
        _cuda("sm_86"),
        _cuda("sm_89"),
        _cuda("sm_90a", families=("sm_80", "sm_90a")),
        _cuda("sm_100a"),
        _cuda("sm_120a"),
    )
}


def find(name: str) -> Target:
    """The target of that name; ValueError lists the known ones."""
    if name not in TARGETS:
        raise ValueError(f"target {name!r} is not known; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]


def for_capability(major: int, minor: int) -> Target:
    """The target whose kernels a GPU of that compute capability runs best.

    An `a` architecture runs on exactly its own capability, any other also on later minors of its major
    (CUDA C++ Programming Guide, "Binary Compatibility" and "Feature Set Compiler Targets").
    ValueError lists the GPUs that have a target.
    """
    fitting = [
        target
        for target in TARGETS.values()
        if target.kind == "cuda"
        and target.capability[0] == major
        and (target.capability[1] == minor or (target.capability[1] < minor and not target.arch.endswith("a")))
    ]
    if not fitting:
        known = ", ".join("{}.{}".format(*target.capability) for target in TARGETS.values() if target.kind == "cuda")
        raise ValueError(
            f"a GPU of compute capability {major}.{minor} has no target; those with {known} do. "
            "Choose target=cpu, or add a line to TARGETS in cudal2/target.py"
        )
    return max(fitting, key=lambda target: target.capability)
