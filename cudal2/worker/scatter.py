"""How much honest results scatter, from the very inputs: what their squared errors come to at most, all together.

A limit on ρ that holds in the mean refuses honest sums by chance: where there are few elements; where one row of a few
products makes all elements of C, however many, wrong together; and where the answer happens to be nearly zero, of which
the error of an fp16 sum takes no notice. So what is allowed is computed for the operands that were given, and is passed
by chance in one of 10⁶ honest results.

**Sums in fp16.** A sum S that is rounded moves by something between ± ulp(S)/2, with the variance ulp(S)²/12: in the
mean over significands 3/(8 ln 2) of (2⁻¹⁰S)²/12. Of the sums before the last only this is known: each has j of the K
products p, in an order that is the kernel's own and knows nothing of the operands. In the mean over all orders a sum of
j has the square (j/K)²C² + j(K − j)/(K(K − 1)) · (Σp² − C²/K). These variances V of the elements, added up, are what
simulated sums of every order and block have (ratio 0.99 to 1.01), or more (several accumulators: 0.3 to 0.9). Around
their total the squared errors scatter in three ways, with t = −ln of the probability:

- as n squares of normals of unequal weight do, n = (ΣV)²/ΣV²: by 2√(t/n) of the total (Laurent and Massart, Annals of
  Statistics 28(5), 2000);
- by the order: product k counts in the more sums the earlier it comes, and where a few products are the largest of all
  elements (Σ a² · Σ b² over a row of them) these err together. That is a sum of such sizes with shuffled weights, as a
  normal of its variance for our purpose (Hoeffding, Annals of Mathematical Statistics 22(4), 1951);
- an element whose products nearly cancel is a normal number times the size of a random bridge, whose largest part is
  0.61 = 6/π² of its mean square (Anderson and Darling, Annals of Mathematical Statistics 23(2), 1952). The product of
  two normals exceeds t with a probability of about e^−t: 0.61 t² of the mean of one element.

They were tried on four million simulated matrices of 1×8 and millions of others up to 64×8, with K from 8 to 64: for
probabilities of 10⁻³ to 10⁻⁶ the bound was passed a third as often as it says, or less.

**Finishing.** What an operator may lose (`Operator.loss`) moves a result across a boundary, or to the far end of its
rounding: no error is larger than ulp/2 + loss. A sum of n bounded terms exceeds its mean by at most √(t/2 · Σ bound²)
(Hoeffding, JASA 58(301), 1963).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cudal2 import operators
from cudal2.dtype import FP16
from cudal2.problem import Problem
from cudal2.worker import limits, verify

SELDOM = 6 * math.log(10)
"""−ln of the probability with which an honest result is refused."""
SIGNIFICANDS = 3 / (8 * math.log(2))
"""Mean square of the step of a number by the greatest that a number of its size may have."""
BRIDGE = 6 / math.pi**2
MANY, SHORT = 2100, 1 << 26
"""So many elements of so many products together scatter no more than a limit for the mean allows."""


def most_squares(given: Sequence[Tensor], exact: Tensor, problem: Problem, chunk: int) -> float | None:
    """What Σ(ĉ − c)² of an honest result is at most; None where `limits.most_rho` says enough.

    `exact` is C before rounding, from the input operands as they are stored; an fp16 accumulator rounds after every
    `chunk` products.
    """
    count = exact.numel()
    if problem.accumulate == "f16" and (count < MANY or count * problem.k <= SHORT):
        return _summed_in_fp16(given, exact, problem, chunk)
    if problem.accumulate == "f32" and operators.find(problem.epilogue).loss:
        return _finished(exact, problem)
    return None


def _summed_in_fp16(given: Sequence[Tensor], exact: Tensor, problem: Problem, chunk: int) -> float:
    operator, k = operators.find(problem.epilogue), problem.k
    a, b, *more = (tensor.double() for tensor in given)
    b = b.T if problem.layout == "tn" else b
    product, a, b = a @ b, a.square_(), b.square_()
    before = -(-k // chunk) - 1  # roundings of sums before the last
    lengths = [number * chunk for number in range(1, before + 1)]
    along, across = sum((j / k) ** 2 for j in lengths), sum(j * (k - j) for j in lengths) / (k * max(1, k - 1))
    rounded = operator.slope**2 * SIGNIFICANDS * (2 * FP16.unit) ** 2 / 12
    summing = rounded * (along * product.square() + across * (a @ b - product.square() / k).clamp_min_(0))
    size = sum((tensor.abs() for tensor in more), product.abs())
    finishing = limits.finishing(problem)
    last = _steps(exact, problem).square() / 12 + (operator.loss / 4) ** 2
    variances = summing + rounded * finishing * size.square() + last
    total = float(variances.sum())
    alike = total**2 / float(variances.square().sum())
    order = 0.0
    if before:
        products = a.sum(0) * b.sum(1)
        uneven = k * float(products.square().sum()) / float(products.sum()) ** 2 - 1
        weights = (before + 2) / (3 * before)  # variance of how often a product counts, by the squared mean
        order = weights * uneven / (k - 1) * (float(summing.sum()) / total) ** 2
    spread = 1 + 2 * math.sqrt(SELDOM * (1 / alike + order / 2)) + BRIDGE * SELDOM**2 / alike
    if not before + finishing:
        spread = min(spread, 3.0)  # no error is larger than half a step
    return max(limits.SPARE**2, spread) * total


def _finished(exact: Tensor, problem: Problem) -> float:
    loss = operators.find(problem.epilogue).loss
    sums = torch.zeros(3, dtype=torch.float64, device=exact.device)
    for (part,) in verify.blocks(exact):
        steps = _steps(part, problem)
        most = steps.div(2).add_(loss).square_()
        sums += torch.stack([steps.square_().sum(), most.sum(), most.square().sum()])
    steps, most, squares = sums.tolist()
    mean = limits.FP32_RHO**2 * steps / 12 + exact.numel() * (loss / 4) ** 2
    return min(mean + math.sqrt(SELDOM / 2 * squares), most)


def _steps(exact: Tensor, problem: Problem) -> Tensor:
    return verify.ulp(exact.to(getattr(torch, problem.type.torch))).double()
