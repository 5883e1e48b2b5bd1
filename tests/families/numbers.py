"""Random operands of a problem as the bits a kernel is given, and what is wrong with the bits that it answers."""

import numpy as np
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem


def integers(problem: Problem, rng: np.random.Generator, most: int) -> list[Tensor]:
    """All inputs as float32, small integers."""
    shapes = [operand.shape for operand in operators.inputs(problem)]
    return [torch.from_numpy(rng.integers(-most, most + 1, shape).astype(np.float32)) for shape in shapes]


def bits(values: Tensor, problem: Problem) -> np.ndarray:
    """The values, rounded to the problem's type, as numbers of 16 bits."""
    return values.to(getattr(torch, problem.type.torch)).view(torch.int16).numpy().view(np.uint16)


def wrong(answer: np.ndarray, given: list[Tensor], problem: Problem) -> str:
    """How the bits of C differ from the product of integers; empty where each is right to the last bit, or after an
    operator that is not exact to its rounding."""
    a, b, *more = given
    operator = operators.find(problem.epilogue)
    exact = operator.finish(a @ (b if problem.layout == "nn" else b.T), more)
    rounded = exact.to(dtype := getattr(torch, problem.type.torch))
    got = torch.from_numpy(answer.view(np.int16).reshape(problem.m, problem.n)).view(dtype)
    room = 0.0 if operator.exact else 2e-4 + 2.01 * problem.type.unit * exact.abs()
    differs = ~((got.float() - rounded.float()).abs() <= room)
    if not differs.any():
        return ""
    places = differs.nonzero()
    row, column = (int(x) for x in places[0])
    return (
        f"{len(places)} of {differs.numel()} wrong, first C[{row}, {column}] = {got[row, column]}, not "
        f"{exact[row, column]}, last at {[int(x) for x in places[-1]]}"
    )
