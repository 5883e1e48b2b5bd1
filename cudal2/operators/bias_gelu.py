"""The product, a bias, and GELU by its tanh formula, as cuBLASLt's epilogue and `gelu(approximate="tanh")` have it."""

import torch
from torch import Tensor

from cudal2.operators import Operand, Operator


def _gelu(values: Tensor) -> Tensor:
    return torch.nn.functional.gelu(values, approximate="tanh")


OPERATOR = Operator(
    more=lambda problem: (Operand("bias", (problem.n,)),),
    finish=lambda product, more: _gelu(product + more[0]),
    slope=1.13,  # the steepest place of GELU
    exact=False,
    loss=2.0**-10,  # the hardware's tanh is off by up to 2^-11 of itself, and is multiplied by x/2 < 2 where it matters
    flop=lambda problem: 9 * problem.m * problem.n,
    torch=lambda a, b, more: _gelu(torch.addmm(more[0], a, b)),
    lt="GELU_BIAS",
    paragraph=(
        "C = gelu(A·B + bias), where bias [N] is added to each row, and gelu(x) = x/2 · (1 + tanh(√(2/π) · "
        "(x + 0.044715 x³))); all in fp32, rounded once."
    ),
)
