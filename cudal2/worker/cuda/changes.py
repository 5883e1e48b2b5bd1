"""Did calls see that an element of A or B had changed its sign just before?

That moves one line of C, a row or a column, by twice the element times a line of the other matrix. Where sums are long
and kept in f16, the bounds for single elements, and for all of a window together, are wider than that. But over the
whole line what is honest lies anywhere, and the change in one direction: a result of the inputs before lies exactly one
change short. Pure functions over tensors of any device.
"""

import math

from torch import Tensor

from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import verify
from cudal2.worker.cuda.arena import Places

SURE = 6.0
"""A line is judged where half of its change is so many standard deviations of what honest results are off by."""


def lines(
    problem: Problem, result: Tensor, reference: Tensor, a: Tensor, b: Tensor, second: bool, places: Places
) -> tuple[Tensor, Tensor, Tensor]:
    """For each changed element of A, or (`second`) of B, the line of C that it moves, float32 [changes, length]: of
    `result`, of `reference`, and by how much it moves.

    All are [sets, …] and as they are after the change, B as the problem stores it.
    """
    sets, rows, columns = places
    stored_nk = problem.layout == "tn"
    if second:
        n, k = (rows, columns) if stored_nk else (columns, rows)
        found, wanted = result[sets, :, n], reference[sets, :, n]
        value, other = b[sets, rows, columns], a[sets, :, k]
    else:
        found, wanted = result[sets, rows], reference[sets, rows]
        value, other = a[sets, rows, columns], b[sets, :, columns] if stored_nk else b[sets, columns]
    return found.float(), wanted.float(), 2 * value.float()[:, None] * other.float()


def check(found: Tensor, wanted: Tensor, moved: Tensor, problem: Problem, chunk: int) -> verify.Finding | None:
    """Whether each line `found` is that of the inputs as they are now, by its error's part along `moved`."""
    size = moved.square().sum(1)
    share = ((found - wanted) * moved).sum(1) / size  # about 0; of the inputs before -1
    unit = verify.ulp16(wanted.half()).square().mean(1).div(12).sqrt()
    noise = math.sqrt(2) * verify.rho_limit(problem.accumulate, problem.k, chunk) * unit
    stale = int(((share < -0.5) & (SURE * noise < 0.5 * size.sqrt())).sum())
    if not stale:
        return None
    return Status.WRONG, f"in timed calls {stale} results are those of inputs as they were before"
