"""What a kernel computes beside the product: one file for each `Problem.epilogue`, and what every place asks of it.

A file defines `OPERATOR`. To add an operator, add a file, and a kernel family that says it serves that epilogue.
Data flows from `operands`: memory, launches, checks, prompts and exports loop over it.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cudal2 import files
from cudal2.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["input", "output"]


class Operand(msgspec.Struct, frozen=True):
    """One matrix or vector that a kernel is given: a dense row-major tensor of the problem's dtype."""

    name: str
    shape: tuple[int, ...]
    role: Role = "input"

    @property
    def elements(self) -> int:
        """How many."""
        size = 1
        for length in self.shape:
            size *= length
        return size


class Operator(msgspec.Struct, frozen=True):
    """C = finish(A · B, more …), where `more(problem)` are the operands beside A, B and C, inputs all.

    `finish(product, more)` works on a product [M,N] of float64 or float32 that was not rounded, and on its operands in
    that precision; so does a kernel: the answer is rounded once. It works element by element: every further operand
    broadcasts against [M,N], and is tested with numbers of about the product's size. `slope` is by how much finishing
    may enlarge an error of the product, `loss` what an honest way to finish in fp32 may be off by itself. `exact` says
    whether integers give integers, so that results can be compared bit for bit. `flop`
    counts the operations beside the product's. `torch(a, b, more)` is how a user calls it in PyTorch: A [M,K], B [K,N],
    in the problem's dtype. `lt` is cuBLASLt's name for the epilogue, "" where it has none. `paragraph` tells a policy.
    """

    more: Callable[[Problem], tuple[Operand, ...]]
    finish: Callable[["Tensor", Sequence["Tensor"]], "Tensor"]
    slope: float
    exact: bool
    flop: Callable[[Problem], int]
    torch: Callable[["Tensor", "Tensor", Sequence["Tensor"]], "Tensor"]
    lt: str
    paragraph: str
    loss: float = 0.0


def find(name: str) -> Operator:
    """The operator of that `Problem.epilogue`; ValueError lists the known ones."""
    found: Any = files.plugin(sys.modules[__name__], name, "epilogue")
    return found.OPERATOR


def known(name: str) -> None:
    """Raises ValueError, which lists the known ones, where no operator has that name; imports none of them."""
    files.check_plugin(sys.modules[__name__], name, "epilogue")


def names() -> tuple[str, ...]:
    """Every operator that has a file."""
    return files.plugin_names(sys.modules[__name__])


def operands(problem: Problem) -> tuple[Operand, ...]:
    """What a kernel of this problem is given, in the order of its parameters: A, B, what more there is, and last C."""
    a = Operand("A", (problem.m, problem.k))
    b = Operand("B", problem.b_shape)
    c = Operand("C", (problem.m, problem.n), "output")
    return (a, b, *find(problem.epilogue).more(problem), c)


def inputs(problem: Problem) -> tuple[Operand, ...]:
    """The operands that a kernel reads: all but the last."""
    return operands(problem)[:-1]


def flop(problem: Problem) -> int:
    """Floating-point operations of the product and of what follows it."""
    return problem.flop + find(problem.epilogue).flop(problem)


def nbytes(problem: Problem) -> int:
    """Bytes of all operands, each touched once."""
    return 2 * sum(operand.elements for operand in operands(problem))
