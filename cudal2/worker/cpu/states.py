"""What a call may have left whose inputs changed (changes.py): while it ran, or before it began.

One whose inputs changed while it ran may have found of each change the old value or the new one, and read an element
more than once. So each element of its output may stem from any combination of the changes that move it (`nearest`); all
others are what they are without. One that began afterwards must have found the new value: `line` is where that shows.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import combinations, product

import torch
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker import inputs, limits

Element = tuple[int, int, int]
"""Of an input that changed: the operand's number (0 for A, 1 for B), row and column as it is stored; a vector is a
matrix of one row."""
Part = tuple[int | None, int | None]
"""Of C: a row, a column, an element, or all of it."""
_EVERY = slice(None)


def nearest(
    result: Tensor, reference: Tensor, given: Sequence[Tensor], places: Sequence[Element], problem: Problem
) -> Tensor:
    """What to compare `result` with, [M,N]: of all that an honest call may have left, what is nearest to it.

    `reference` is the trusted result of the operands `given` as they are now, when the sign of each of `places` has
    changed. In the parts of C that these move it is computed anew, so that both are rounded once; elsewhere it stays.
    """
    tables, spots = _plain(given, places, problem)
    moved = {spot: _moved(spot, tables) for spot in spots}
    expected = reference.clone()
    # Where the parts of two elements cross, both move C: smaller parts come later, and have the last word.
    for row, column in sorted(product(*map(set, zip(*moved.values()))), key=lambda part: -part.count(None)):
        moving = [spot for spot in spots if moved[spot][0] in (None, row) and moved[spot][1] in (None, column)]
        if moving:
            place = _lines(row), _lines(column)
            expected[place] = _nearest(result[place], tables, moving, place, problem)
    return expected


def line(
    result: Tensor, reference: Tensor, given: Sequence[Tensor], place: Element, problem: Problem
) -> tuple[Tensor, Tensor, Tensor]:
    """What an element of the operands moves of `result` and of `reference`, and by how much that would be off with the
    element's other sign: float32 [1,length] each, for `stale.check`."""
    tables, (spot,) = _plain(given, [place], problem)
    row, column = _moved(spot, tables)
    part = _lines(row), _lines(column)
    if limits.finishing(problem):
        made = _states(tables, [spot], part, problem)
        moved = made([spot]) - made([])
    else:
        inner = spot[2 - spot[0]]
        moved = -2 * tables[0][part[0], inner, None].float() * tables[1][None, inner, part[1]].float()
    found, wanted, moved = (matrix.float().reshape(1, -1) for matrix in (result[part], reference[part], moved))
    return found, wanted, moved


def _plain(given: Sequence[Tensor], places: Sequence[Element], problem: Problem) -> tuple[list[Tensor], list[Element]]:
    """A [M,K], B [K,N] and what more there is as matrices, and where in these the elements stand, each once."""
    a, b, *more = (tensor.view(inputs.as_matrix(tensor.shape)) for tensor in given)
    tn = problem.layout == "tn"
    spots = sorted({(1, y, x) if which == 1 and tn else (which, x, y) for which, x, y in places})
    return [a, b.T if tn else b, *more], spots


def _moved(spot: Element, tables: Sequence[Tensor]) -> Part:
    """The part of C that an element moves: a row for one of A, a column for one of B; what else there is broadcasts."""
    which, row, column = spot
    if which < 2:
        return (None, column) if which else (row, None)
    rows, columns = tables[which].shape
    return row if rows > 1 else None, column if columns > 1 else None


def _lines(number: int | None) -> slice:
    return _EVERY if number is None else slice(number, number + 1)


def _nearest(
    result: Tensor, tables: Sequence[Tensor], spots: Sequence[Element], place: tuple[slice, slice], problem: Problem
) -> Tensor:
    """A part of C: for each set of changes that may not have been seen yet what it would be, and of these the nearest.

    `tables` are A [M,K], B [K,N] and what more there is, `spots` the changed elements in them that move all of it.
    """
    made = _states(tables, spots, place, problem)
    chosen, distance = result, torch.full(result.shape, torch.inf, device=result.device)
    for size in range(len(spots) + 1):
        for unseen in combinations(spots, size):
            found = made(unseen)
            away = (found - result.float()).abs_().nan_to_num_(nan=torch.inf)
            nearer = (away < distance) if size else torch.ones_like(away, dtype=torch.bool)
            chosen, distance = torch.where(nearer, found.to(result.dtype), chosen), torch.where(nearer, away, distance)
    return chosen


def _states(
    tables: Sequence[Tensor], spots: Sequence[Element], place: tuple[slice, slice], problem: Problem
) -> Callable[[Collection[Element]], Tensor]:
    """What that part of C is, before it is rounded, where these of the `spots` have not been seen."""
    rows, columns = place
    a, b, others = tables[0][rows], tables[1][:, columns], [_part(table, place).float() for table in tables[2:]]
    inner = sorted({column if not which else row for which, row, column in spots if which < 2})
    thin = a[:, inner].float(), b[inner].float()  # all of A and B that changed lies in these
    same = a.float() @ b.float() - thin[0] @ thin[1]
    finish = operators.find(problem.epilogue).finish

    def made(unseen: Collection[Element]) -> Tensor:
        signs, flipped = torch.ones(2, len(inner)), {which for which, *_ in unseen}
        for which, row, column in unseen:
            if which < 2:
                signs[which, inner.index(row if which else column)] = -1
        sums = same + (thin[0] * signs[0]) @ (thin[1] * signs[1][:, None])
        # An element of another operand that moves all of the part is all that it takes from there.
        return finish(sums, [-other if number in flipped else other for number, other in enumerate(others, 2)])

    return made


def _part(table: Tensor, place: tuple[slice, slice]) -> Tensor:
    """What of an operand that broadcasts against C stands in that part of it."""
    rows, columns = (size if length > 1 else _EVERY for size, length in zip(place, table.shape))
    return table[rows, columns]
