"""Did a call use an input as it was when it was its turn? That shows along the line of C which that element moves.

Where sums are long and kept in f16, the bounds for single elements, and for all timed calls together, are wider than
what one element moves. But over the whole line what is honest lies anywhere, and the change in one direction: a result
of the other inputs lies exactly one change away. A pure function over tensors of any device.
"""

import math

from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, limits, verify

SURE = 6.0
"""A line is judged where half of its change is so many standard deviations of what honest results are off by."""


def check(found: Tensor, wanted: Tensor, moved: Tensor, problem: Problem, chunk: int) -> verify.Finding | None:
    """Whether each line `found` is that of the inputs which the call should have used, by its error's part along
    `moved`."""
    size = moved.square().sum(1)
    share = ((found - wanted) * moved).sum(1) / size  # about 0; with the other value 1
    unit = verify.ulp(wanted.to(inputs.element(problem))).square().mean(1).div(12).sqrt()
    noise = math.sqrt(2) * limits.most_rho(problem, chunk) * unit
    # An honest way to finish may be off by so much everywhere, and in no direction of its own.
    loss = operators.find(problem.epilogue).loss * math.sqrt(wanted.shape[1])
    stale = int(((share > 0.5) & (SURE * noise + loss < 0.5 * size.sqrt())).sum())
    if not stale:
        return None
    return Status.WRONG, f"in timed calls {stale} results are those of inputs as they were before, or came to be later"
