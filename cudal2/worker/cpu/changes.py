"""What a call may have found whose inputs changed while it ran: of each change the old value or the new one.

It may have read an element more than once, before the change and after it. So each element of its output may stem from
any combination of the changes that move it; all others are what they are without. Pure functions over tensors of any
device.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from cudal2.problem import Problem

Place = tuple[int, int, int]
"""Of an input that changed: 0 for A or 1 for B, row and column as it is stored."""


def nearest(
    result: Tensor, reference: Tensor, a: Tensor, b: Tensor, places: Sequence[Place], problem: Problem
) -> Tensor:
    """What to compare `result` with, float16 [M,N]: of all that an honest call may have left, what is nearest to it.

    `reference` is the trusted result of A and B as they are now, when the sign of each of `places` has changed. In the
    rows and columns of C that these move it is computed anew, so that both are rounded once; elsewhere it stays.
    """
    right = b.T if problem.layout == "tn" else b
    spots = sorted({place if place[0] == 0 or problem.layout == "nn" else (1, place[2], place[1]) for place in places})
    before = [subset for size in range(len(spots) + 1) for subset in combinations(spots, size)]
    expected = reference.clone()
    every = slice(None)
    for row in {row for second, row, _ in spots if not second}:
        rows, columns = slice(row, row + 1), every
        expected[rows, columns] = _nearest(result[rows, columns], a, right, spots, before, rows, columns)
    for column in {column for second, _, column in spots if second}:
        rows, columns = every, slice(column, column + 1)
        expected[rows, columns] = _nearest(result[rows, columns], a, right, spots, before, rows, columns)
    return expected


def _nearest(
    result: Tensor,
    a: Tensor,
    b: Tensor,
    spots: Sequence[Place],
    before: Sequence[Sequence[Place]],
    rows: slice,
    columns: slice,
) -> Tensor:
    """Of a part of C: for each of `before`, the changes not yet seen, what it would be, and of these the nearest."""
    inner = sorted({column if not second else row for second, row, column in spots})
    now = a[rows].float() @ b[:, columns].float()
    thin = a[:, inner].float(), b[inner].float()  # all that changed lies in these
    product = thin[0][rows] @ thin[1][:, columns]
    possible = []
    for unseen in before:
        left, right = thin[0].clone(), thin[1].clone()
        for second, row, column in unseen:
            if second:
                right[inner.index(row), column] *= -1
            else:
                left[row, inner.index(column)] *= -1
        possible.append(now - product + left[rows] @ right[:, columns])
    found = torch.stack(possible)
    chosen = (found - result.float()).abs_().nan_to_num_(nan=torch.inf).argmin(0, keepdim=True)
    return found.gather(0, chosen)[0].half()
