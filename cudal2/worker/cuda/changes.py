"""Did calls use their inputs as they were when it was their turn, and neither earlier nor later values?

A touch that changes an element of A or B (history.py) moves one line of C, a row or a column, by twice the element
times a line of the other matrix. Where sums are long and kept in f16, the bounds for single elements, and for all of a
window together, are wider than that. But over the whole line what is honest lies anywhere, and the change in one
direction: a result of the other inputs lies exactly one change away. Pure functions over tensors of any device.
"""

import math

import torch
from torch import Tensor

from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import limits, verify
from cudal2.worker.cuda.history import History

SURE = 6.0
"""A line is judged where half of its change is so many standard deviations of what honest results are off by."""


def lines(
    history: History, problem: Problem, result: Tensor, reference: Tensor, a: Tensor, b: Tensor, second: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For each element of A, or (`second`) of B, that a history changed, the line of C that it moves, float32
    [changes, length]: of `result`, of `reference`, and by how much it would be off with the other value.

    All are [sets, …] and as they are when all calls are over, B as the problem stores it.
    """
    which = history.changed(second)
    sets, rows, columns = (
        torch.from_numpy(each[which]).to(a.device) for each in (history.number, history.row, history.column)
    )
    stored_nk = problem.layout == "tn"
    if second:
        n, k = (rows, columns) if stored_nk else (columns, rows)
        found, wanted = result[sets, :, n], reference[sets, :, n]
        value, other = b[sets, rows, columns], a[sets, :, k]
    else:
        found, wanted = result[sets, rows], reference[sets, rows]
        value, other = a[sets, rows, columns], b[sets, :, columns] if stored_nk else b[sets, columns]
    over = torch.from_numpy(history.over[which]).to(a.device)
    twice = torch.where(over, 2.0, -2.0) * value.float()  # a call that was over used the negative of what stands there
    return found.float(), wanted.float(), twice[:, None] * other.float()


def check(found: Tensor, wanted: Tensor, moved: Tensor, problem: Problem, chunk: int) -> verify.Finding | None:
    """Whether each line `found` is that of the inputs which the call should have used, by its error's part along
    `moved`."""
    size = moved.square().sum(1)
    share = ((found - wanted) * moved).sum(1) / size  # about 0; with the other value 1
    unit = verify.ulp(wanted.half()).square().mean(1).div(12).sqrt()
    noise = math.sqrt(2) * limits.rho_limit(problem.accumulate, problem.k, chunk) * unit
    stale = int(((share > 0.5) & (SURE * noise < 0.5 * size.sqrt())).sum())
    if not stale:
        return None
    return Status.WRONG, f"in timed calls {stale} results are those of inputs as they were before, or came to be later"
