"""Qualifiers for the compiler: __restrict__ on pointers, inlining, `volatile` and clobbers of assembler statements."""

import random
import re

from cudal2.search.text import another, change_one

_INLINE = re.compile(r"\b(?:__forceinline__|__noinline__)(?= )")
_STATIC = re.compile(
    r"(?m)^static (?:inline )?(?:__attribute__\(\((?:noinline|always_inline)\)\) )?(?=[\w ]+[ *]\w+\([^;]*\{)"
)
_STATICS = [
    *("static ", "static inline "),
    *(f"static inline __attribute__(({how})) " for how in ("always_inline", "noinline")),
]
_SIGNATURE = re.compile(r"\b(?:(?:void|int|cudaError_t) \w+|gemm_kernel)\([^{;()]*\*[^{;()]*\) \{$", re.MULTILINE)
_VOLATILE = re.compile(r"\basm volatile(?=\()")
_CLOBBER = re.compile(r' ?(?::::?|:) ?"memory"(?=\))')


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    return change_one(
        source,
        [
            (_INLINE, lambda match: another(["__forceinline__", "__noinline__"], match[0], rng)),
            (_STATIC, lambda match: another(_STATICS, match[0], rng)),
            (_SIGNATURE, lambda match: _restrict(match[0])),
            (_VOLATILE, lambda match: "asm"),
            (_CLOBBER, lambda match: ""),
        ],
        rng,
    )


def _restrict(signature: str) -> str:
    """The signature with __restrict__ on all its pointers; without, if it had it."""
    if "__restrict__ " in signature:
        return signature.replace("__restrict__ ", "")
    return re.sub(r"\* ?(?=\w)", "* __restrict__ ", signature)
