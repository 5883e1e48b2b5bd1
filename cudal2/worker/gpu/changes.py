"""Did calls use their inputs as they were when it was their turn, and neither earlier nor later values?

A touch that changes an element of A or B (history.py) moves one line of C, a row or a column, by twice the element
times a line of the other matrix; an element of a bias moves a column by twice itself. Where an activation follows, how
far each place of the line moves depends on the sum there: it is finished with either value, and no bound is needed.
`stale.check` judges such lines. Pure functions over tensors of any device.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker import limits
from cudal2.worker.gpu.history import History

Line = Callable[[Tensor], Tensor]
"""Of [sets,M,N], or what broadcasts against it, the line [changes, length] that each change moves."""


def lines(
    history: History,
    problem: Problem,
    result: Tensor,
    reference: Tensor,
    given: Sequence[Tensor],
    operand: int,
    products: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """For each element of an input operand that a history changed, the line of C that it moves, float32 [changes,
    length]: of `result`, of `reference`, and by how much it would be off with the other value.

    All are [sets, …] and as they are when all calls are over, B as the problem stores it. `products` [sets,M,N] are
    those of the inputs that each call found; they are needed where something follows the product.
    """
    a, b, *more = given
    which = history.changed(operand)
    sets, rows, columns = (
        torch.from_numpy(each[which]).to(a.device) for each in (history.number, history.row, history.column)
    )
    value = _matrix(given[operand])[sets, rows, columns].float()
    line: Line
    stored_nk = problem.layout == "tn"
    if operand == 0:
        line = _rows(sets, rows)
        shift = -2 * value[:, None] * (b[sets, :, columns] if stored_nk else b[sets, columns]).float()
    elif operand == 1:
        n, k = (rows, columns) if stored_nk else (columns, rows)
        line = _columns(sets, n)
        shift = -2 * value[:, None] * a[sets, :, k].float()
    else:
        whole = _matrix(given[operand]).shape[1] == problem.m > 1
        line = _elements(sets, rows, columns) if whole else _columns(sets, columns)
        shift = torch.zeros_like(line(result), dtype=torch.float32)
    found, wanted = line(result).float(), line(reference).float()
    if not limits.finishing(problem):
        return found, wanted, shift
    assert products is not None
    finish, product = operators.find(problem.epilogue).finish, line(products)
    right = [line(_matrix(one).expand(result.shape)).float() for one in more]
    # The element as the call should have found it, and as it was before.
    for number in range(len(more)):
        if number + 2 == operand:
            right[number] = value[:, None].expand(shift.shape)
    other = [-one if number + 2 == operand else one for number, one in enumerate(right)]
    return found, wanted, finish(product + shift, other) - finish(product, right)


def _matrix(operand: Tensor) -> Tensor:
    """[sets, rows, columns]: a vector has one row."""
    return operand if operand.dim() == 3 else operand[:, None]


def _rows(sets: Tensor, rows: Tensor) -> Line:
    return lambda matrices: matrices[sets, rows]


def _columns(sets: Tensor, columns: Tensor) -> Line:
    return lambda matrices: matrices[sets, :, columns]


def _elements(sets: Tensor, rows: Tensor, columns: Tensor) -> Line:
    return lambda matrices: matrices[sets, rows, columns][:, None]
