"""The product and a bias, as a layer of a model has it: one number for each column of C."""

import torch

from cudal2.operators import Operand, Operator

OPERATOR = Operator(
    more=lambda problem: (Operand("bias", (problem.n,)),),
    finish=lambda product, more: product + more[0],
    slope=1.0,
    exact=True,
    flop=lambda problem: problem.m * problem.n,
    torch=lambda a, b, more: torch.addmm(more[0], a, b),
    lt="BIAS",
    paragraph="To each row of A·B the vector bias [N] is added, in the accumulator, before C is rounded.",
)
