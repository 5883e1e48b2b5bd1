"""What a kernel is compiled for: language, compiler flags, the contract its source must meet."""

import msgspec


class Target(msgspec.Struct, frozen=True):
    """One kind of machine that kernels are written for.

    `language` names the code fence a completion may use; `includes` the headers a source may name;
    `flags` what the compiler is given beyond what the worker itself needs.
    """

    name: str
    language: str
    suffix: str
    signature: str
    flags: tuple[str, ...]
    includes: frozenset[str]


CPU = Target(
    name="cpu",
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
)

TARGETS = {target.name: target for target in (CPU,)}


def find(name: str) -> Target:
    """The target of that name; ValueError lists the known ones."""
    if name not in TARGETS:
        raise ValueError(f"target {name!r} is not known; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
