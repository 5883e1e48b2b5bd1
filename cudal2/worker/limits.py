"""How far honest results may be off: bounds for ρ, for single elements, and for two results of the same inputs.

They are told from a problem alone; `scatter.py` looks at its inputs, too. What they are compared with is in
`verify.py`, which defines ρ.
"""

import math
from functools import lru_cache

from cudal2 import operators
from cudal2.dtype import FP16
from cudal2.problem import Problem

TIMED_LIMIT, DRIFT = 0.8, 0.026
"""Two fp32-accumulated results, each rounded to fp16, differ by less than this in units of ρ; on a processor, where
each addition is rounded, by less than this times K^¼, too; see `timed_limit`."""
FEW = 2100
"""All of fewer elements may be nearly zero; see `least_rounding`."""
SELDOM = 12 * math.log(10)
"""−ln of the probability with which an honest call is taken for a coarse one."""
FP32_RHO, SPARE = 1.05, 1.15
"""Largest ρ of a sum in fp32; by how much that of an fp16 one may exceed its mean."""


def rho_limit(accumulate: str, k: int, chunk: int, finishing: int = 0) -> float:
    """Largest ρ that passes: 1.05 for an fp32 accumulator, 1.15 times what rounding every chunk gives for an fp16 one.

    The last chunk may be shorter. A sum no longer than a chunk is rounded once, as an fp32 one is; `finishing` more
    roundings follow. What an fp32 sum rounds to is the perfect answer but for a few elements, so its ρ hardly scatters
    even over a few; for that of an fp16 one see `scatter.py`.
    """
    if accumulate == "f32":
        return FP32_RHO
    before = -(-k // chunk) - 1  # roundings of sums before the last
    return SPARE * math.sqrt(1 + finishing + chunk * before * (before + 1) / (2 * k))


def most_rho(problem: Problem, chunk: int) -> float:
    """`rho_limit` of a problem."""
    steep = 1.0 if problem.accumulate == "f32" else operators.find(problem.epilogue).slope
    return steep * rho_limit(problem.accumulate, problem.k, chunk, finishing(problem))


def least_rounding(problem: Problem, count: int) -> float:
    """What at least is taken for the rounding error of `count` elements, in RMS: all of a few may be nearly zero.

    So they are where an activation is flat, whose own loss counts then; and where an fp16 sum's products have cancelled
    one another, of which its error takes no notice: what rounding normal numbers of its size costs.
    """
    operator, terms = operators.find(problem.epilogue), len(operators.inputs(problem)) - 1
    few = problem.accumulate == "f16" and count < FEW
    return max(operator.loss / 4, few * problem.type.unit * math.sqrt(problem.k * terms / 6))


def finishing(problem: Problem) -> int:
    """Roundings of the accumulator behind the sum: one where anything follows the product."""
    return int(operators.flop(problem) > problem.flop)


def timed_limit(problem: Problem, chunk: int) -> float:
    """Largest ρ of two honest results' difference, of many elements; `disagreements` says what it is of few.

    Two sums in fp32 that were rounded to another type differ where a boundary lies between them; that is the rarer the
    further apart its boundaries are, in RMS with their root. Two fp16 sums are each off by `rho_limit`.

    A processor rounds each of K additions by some 2.5·10⁻⁸ of the partial sum in RMS. Two sums, each one product after
    the other, then are K · 2.5·10⁻⁸ apart, beside an fp16 step of √K/1400: in 2.8·10⁻⁵ √K of all elements a boundary
    lies between them, which is ρ = 0.0184 K^¼; 0.016 was measured. Any other order is nearer. √2 times that is allowed,
    twice as many such elements. Fixed point of 16 bits has 0.43 where its unit is a step of most fp16 numbers and the
    few beyond its range are multiplied apart, 0.25 where these are one in twenty. Tensor cores cut off what they add,
    so there the bound is one for all K.
    """
    if problem.accumulate == "f32":
        drift = DRIFT * problem.k**0.25 if chunk == 1 else TIMED_LIMIT
        return min(TIMED_LIMIT, drift) * 2.0 ** ((problem.type.digits - FP16.digits) / 2)
    return math.sqrt(2) * most_rho(problem, chunk)


def loss_bound(problem: Problem, chunk: int) -> float:
    """How much summing K products of N(0,1), and finishing, loses at most, final rounding apart: roundings · ε · 4√K/2,
    times the operator's slope, plus its own loss.

    ε is the accumulator's: 2⁻²⁴ for each of the K roundings, or for an fp16 one 2⁻¹¹ for each chunk. An operand that is
    added is another rounding, and as large as the product.
    """
    operator, added = operators.find(problem.epilogue), len(operators.inputs(problem)) - 2
    roundings, epsilon = (problem.k, 2.0**-24) if problem.accumulate == "f32" else (-(-problem.k // chunk), 2.0**-11)
    size = 4 * math.sqrt(problem.k * (1 + added))
    return operator.slope * (roundings + finishing(problem)) * epsilon * size / 2 + operator.loss


@lru_cache(1000)
def disagreements(count: int, limit: float, rare: bool) -> float:
    """Two honest results of `count` elements, whose ρ is at most `limit` in the mean, disagree by less: the sum D of
    squared differences d, each in units of the element's ulp or, where that is smaller, of the RMS of all ulps.

    In the mean D is no more than μ = count · limit² / 12, as ρ² is 12 Σd² / Σulp². Around that it scatters:

    - Two sums in fp32 round to the same fp16 number, unless a boundary lies between them, which has a small probability
      for each element, whatever the others do. They are neighbours then, and d ≤ 1 in these units. A sum of independent
      terms, each between 0 and 1, of mean μ together has no wider tail than a Poisson count of mean μ (its exponential
      moments are no larger: Hoeffding, JASA 58(301), 1963): P(D ≥ x) ≤ exp(−(x ln(x/μ) − x + μ)).
    - Two sums in fp16 (not `rare`) differ everywhere, by numbers that look normal, some elements' more widely: their
      variances are taken to be up to four times the mean. A sum of squares of normals has
      P(D ≥ μ + 4√(μ²t/count) + 8μt/count) ≤ exp(−t) then (Laurent and Massart, Annals of Statistics 28(5), 2000).

    The probability is 10⁻¹² for each call: a campaign of a million verdicts has 10¹¹ of them. All calls of a batch
    together scatter alike: of a slow kernel that is one call.
    """
    mean = count * limit**2 / 12
    if not rare:
        return mean * (1 + 4 * math.sqrt(SELDOM / count) + 8 * SELDOM / count)
    low, high = mean, mean + 2 * SELDOM + 2 * math.sqrt(SELDOM * mean)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.log(middle / mean) - middle + mean < SELDOM else (low, middle)
    return high
