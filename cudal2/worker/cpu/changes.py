"""What a call may have found whose inputs changed while it ran: of each change the old value or the new one.

It may have read an element more than once, before the change and after it. So each element of its output may stem from
any combination of the changes that move it; all others are what they are without. Pure functions over tensors of any
device.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker import inputs

Place = tuple[int, int, int]
"""Of an input that changed: the operand's number (0 for A, 1 for B), row and column as it is stored; a vector is a
matrix of one row."""
Part = tuple[slice, slice]
"""Rows and columns of C."""
EVERY = slice(None)


def nearest(
    result: Tensor, reference: Tensor, given: Sequence[Tensor], places: Sequence[Place], problem: Problem
) -> Tensor:
    """What to compare `result` with, [M,N]: of all that an honest call may have left, what is nearest to it.

    `reference` is the trusted result of the operands `given` as they are now, when the sign of each of `places` has
    changed. In the parts of C that these move it is computed anew, so that both are rounded once; elsewhere it stays.
    """
    a, b, *more = (tensor.view(inputs.as_matrix(tensor.shape)) for tensor in given)
    tables = [a, b.T if problem.layout == "tn" else b, *more]
    spots = sorted({(1, y, x) if which == 1 and problem.layout == "tn" else (which, x, y) for which, x, y in places})
    expected = reference.clone()
    for spot in spots:
        part = _moved(spot, tables)
        expected[part] = _nearest(result[part], tables, spots, part, problem)
    return expected


def _moved(spot: Place, tables: Sequence[Tensor]) -> Part:
    """The part of C that an element moves: a row for one of A, a column for one of B; what else there is broadcasts."""
    which, row, column = spot
    if which < 2:
        return (EVERY, slice(column, column + 1)) if which else (slice(row, row + 1), EVERY)
    rows, columns = tables[which].shape
    return slice(row, row + 1) if rows > 1 else EVERY, slice(column, column + 1) if columns > 1 else EVERY


def _nearest(result: Tensor, tables: Sequence[Tensor], spots: Sequence[Place], part: Part, problem: Problem) -> Tensor:
    """A part of C: for each set of changes that may not have been seen yet what it would be, and of these the nearest.

    `tables` are A [M,K], B [K,N] and what more there is, `spots` the changed elements in them.
    """
    a, b, more = tables[0], tables[1], tables[2:]
    rows, columns = part
    inner = sorted({column if not which else row for which, row, column in spots if which < 2})
    now = a[rows].float() @ b[:, columns].float()
    thin = a[:, inner].float(), b[inner].float()  # all of A and B that changed lies in these
    product = thin[0][rows] @ thin[1][:, columns]
    chosen, distance = result, torch.full(result.shape, torch.inf, device=result.device)
    for size in range(len(spots) + 1):
        for unseen in combinations(spots, size):
            left, right = thin[0].clone(), thin[1].clone()
            others = [_flipped(table, number, unseen) for number, table in enumerate(more, 2)]
            for which, row, column in unseen:
                if which == 0:
                    left[row, inner.index(column)] *= -1
                elif which == 1:
                    right[inner.index(row), column] *= -1
            sums = now - product + left[rows] @ right[:, columns]
            finish = operators.find(problem.epilogue).finish
            found = finish(sums, [_part(other, part) for other in others])
            away = (found - result.float()).abs_().nan_to_num_(nan=torch.inf)
            nearer = (away < distance) if size else torch.ones_like(away, dtype=torch.bool)
            chosen, distance = torch.where(nearer, found.to(result.dtype), chosen), torch.where(nearer, away, distance)
    return chosen


def _flipped(table: Tensor, number: int, unseen: Sequence[Place]) -> Tensor:
    """An operand beside A and B in fp32, as it was before these changes."""
    before = table.float()
    for which, row, column in unseen:
        if which == number:
            before = before.clone()
            before[row, column] *= -1
    return before


def _part(table: Tensor, part: Part) -> Tensor:
    """What of an operand that broadcasts against C stands in that part of it."""
    rows, columns = (size if length > 1 else EVERY for size, length in zip(part, table.shape))
    return table[rows, columns]
