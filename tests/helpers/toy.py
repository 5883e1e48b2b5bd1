"""An operator that is not one of ours, in a folder of its own, with the plainest kernel of it for a processor.

C = A·B + R, where R is a matrix [M,N], as where a layer's result is added to what went in. `operator(folder)` is a
context in which `Problem(…, epilogue=NAME)` works; processes that begin in it know it too, where they are told of
`operators.__path__`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal2 import operators

NAME = "residual"
OPERATOR = '''
"""The product and another matrix."""

from cudal2.operators import Operand, Operator

OPERATOR = Operator(
    more=lambda problem: (Operand("R", (problem.m, problem.n)),),
    finish=lambda product, more: product + more[0],
    slope=1.0,
    exact=True,
    flop=lambda problem: problem.m * problem.n,
    torch=lambda a, b, more: a @ b + more[0],
    lt="",
    paragraph="To A·B the matrix R [M,N] is added, in the accumulator, before C is rounded.",
)
'''
KERNEL = """
static float dot(const _Float16* a, const _Float16* b, int count) {
    float sum = 0;
    for (int k = 0; k < count; ++k) sum += (float)a[k] * (float)b[k];
    return sum;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, const _Float16* R, _Float16* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) C[i * N + j] = (_Float16)(dot(A + i * K, B + j * K, K) + (float)R[i * N + j]);
    return 0;
}
"""
"""For layout tn and fp16."""


@contextmanager
def operator(folder: Path) -> Iterator[str]:
    """The operator's name, under which it is known in the body: its file is written to `folder`."""
    (folder / f"{NAME}.py").write_text(OPERATOR)
    operators.__path__.append(str(folder))
    try:
        yield NAME
    finally:
        operators.__path__.remove(str(folder))
        sys.modules.pop(f"{operators.__name__}.{NAME}", None)


FAMILY = """
summary = "The plainest product with another matrix added"
layouts = ["tn"]
epilogues = ["residual"]

[knobs]
unroll = [1, 2, 4, 8]
style = ["plain"]
"""
TEMPLATE = """
extern "C" int hgemm(const _Float16* A, const _Float16* B, const _Float16* R, _Float16* C, int M, int N, int K, void*) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = (float)R[i * N + j];
#pragma GCC unroll {{ unroll }}
            for (int k = 0; k < K; ++k) sum += (float)A[i * K + k] * (float)B[j * K + k];
            C[i * N + j] = (_Float16)sum;
        }
    return 0;
}
"""


def family(families: Path) -> None:
    """Writes a kernel family that serves the operator into a copy of data/families."""
    (families / "cpu" / f"{NAME}.toml").write_text(FAMILY)
    (families / "cpu" / f"{NAME}.cpp.j2").write_text(TEMPLATE)
