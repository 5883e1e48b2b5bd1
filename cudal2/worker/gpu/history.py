"""What happens to the inputs of a window while its calls run. Candidate and baseline go through the same history.

Before each call one element of an input (A, B, or what more there is) of some set of the window is written (a touch),
or a few are. Mostly that is the value which stands there already; at times it is the element's negative, so that the
inputs are normals as before. The set is one whose call is still to come, which must use the new value, or one whose
call is over, where the old value counts. So work that is done ahead is as wrong as work that is put off. Every call has
as many touches: no call tells from its own that the inputs of another have changed, and nothing that a kernel may
notice of a touch (the number of its launch, what it left in registers, a pause) says which of them changed something.

`history.h` says how the touches are written. Nothing here needs a GPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
from torch import Tensor

from cudal2.problem import Problem

OVER, CHANGE = 1 / 4, 1 / 2
"""Share of the touches that go to a set whose call is over; and of the touches that change a value, if their set has
not been changed yet. Work put off cannot be saved once its inputs are gone, so a few of the former are enough. A touch
of a set to come has to be minded by whoever works ahead, also where it changes nothing."""
FEW, TOUCHES_OF_FEW = 16, 4
"""In a window of so few calls so many touches come before each: such calls are long. All of them change something if
they can, and half of them go to sets whose calls are over."""
NEXT = 1 / 2
"""Share of the touches that go to the nearest set: that of the call that follows, or of the one just over. The others
are spread, short distances as often as long ones."""
DRAWN = 8
"""So many elements of a matrix are drawn; the one that weighs most in C is touched."""

SIGN = np.uint16(0x8000)
"""The bit that a change flips, in every type of 16 bits."""

Touches = np.ndarray
"""Elements of TOUCH, as many for each call."""
TOUCH = np.dtype([("where", "<u8"), ("value", "<u4"), ("unused", "<u4")])
"""Mirrors `Touch` of history.h: an address in bytes, and the bits that are written there."""


class History(msgspec.Struct, frozen=True):
    """The order in which sets are called, and the touches, as many before each call: arrays of one element a touch.

    A touch goes to `row` and `column` of the input operand number `operand` of the set `number`; a vector is a matrix
    of one row. `bits` are those of the value that it writes; `changes` says whether that is another than before, `over`
    whether the set's call had been made.
    """

    order: list[int]
    number: np.ndarray
    operand: np.ndarray
    row: np.ndarray
    column: np.ndarray
    bits: np.ndarray
    changes: np.ndarray
    over: np.ndarray

    @property
    def each(self) -> int:
        """Touches before each call."""
        return len(self.number) // len(self.order)

    def touches(self, given: Sequence[Tensor], origin: int = 0) -> Touches:
        """The touches of these inputs [sets, …], in bytes from the address `origin` on."""
        found = np.zeros(len(self.number), TOUCH)
        places = [_address(matrix, self.number, self.row, self.column) - origin for matrix in _matrices(given)]
        found["where"], found["value"] = np.choose(self.operand, places), self.bits
        return found

    def changed(self, operand: int) -> np.ndarray:
        """Which touches changed that operand."""
        return np.flatnonzero(self.changes & (self.operand == operand))

    def apply(self, given: Sequence[Tensor]) -> None:
        """Have inputs hold what they hold when all calls are over; they may have gone through the history, or not."""
        for operand, matrix in enumerate(_matrices(given)):
            which = self.changed(operand)
            self._write(matrix, which, self.bits[which])

    @contextmanager
    def as_called(self, given: Sequence[Tensor]) -> Iterator[None]:
        """Have inputs that hold what `apply` leaves there hold what each set's own call found, for a while."""
        late = [(matrix, self._late(operand)) for operand, matrix in enumerate(_matrices(given))]
        for matrix, which in late:
            self._write(matrix, which, self.bits[which] ^ SIGN)
        try:
            yield
        finally:
            for matrix, which in late:
                self._write(matrix, which, self.bits[which])

    def _late(self, operand: int) -> np.ndarray:
        return np.flatnonzero(self.changes & self.over & (self.operand == operand))

    def _write(self, matrix: Tensor, which: np.ndarray, bits: np.ndarray) -> None:
        place = [_on(matrix, each[which]) for each in (self.number, self.row, self.column)]
        matrix[place[0], place[1], place[2]] = _on(matrix, bits.view(np.int16)).view(matrix.dtype)


def draw(
    order: Sequence[int], given: Sequence[Tensor], powers: Tensor, problem: Problem, rng: np.random.Generator
) -> History:
    """A history of calls in this order, on input operands [sets, …] as they are before it.

    `powers` [sets,K] are those of two by which the columns of A are scaled, and the rows of B divided. Every operand is
    touched as often as any other, however small it is: a bias that a kernel remembers is as wrong as a matrix.
    """
    few = len(order) <= FEW
    each = TOUCHES_OF_FEW if few else 1
    calls = np.arange(len(order)).repeat(each)
    count = len(calls)
    over = (np.arange(count) % 2 == 0 if few else rng.random(count) < OVER) & (calls > 0)
    reach = np.where(over, calls, len(order) - calls)  # so many sets can be meant
    distance = np.where(rng.random(count) < NEXT, 0, (reach ** rng.random(count)).astype(np.int64) - 1)
    number = np.array(order)[np.where(over, calls - 1 - distance, calls + distance)]
    changes = _one_each(number, over, few | (rng.random(count) < CHANGE), rng)
    operand = rng.integers(len(given), size=count)
    for kind in (changes & over, changes & ~over):
        operand[kind] = _dealt(int(kind.sum()), len(given), rng)
    row, column, bits = _elements(number, operand, given, powers, problem, rng)
    written = _written(np.stack([number, operand, row, column], axis=1), bits, changes)
    return History(list(order), number, operand, row, column, written, changes, over)


def _elements(
    number: np.ndarray,
    operand: np.ndarray,
    given: Sequence[Tensor],
    powers: Tensor,
    problem: Problem,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and bits of an element for each touch: of DRAWN, the largest but for its scale."""
    row, column, bits = np.zeros_like(number), np.zeros_like(number), np.zeros(len(number), np.uint16)
    for which, matrix in enumerate(_matrices(given)):
        chosen = np.flatnonzero(operand == which)
        if not len(chosen):
            continue
        rows, columns = (rng.integers(size, size=(DRAWN, len(chosen))) for size in matrix.shape[1:])
        sets = _on(matrix, np.broadcast_to(number[chosen], rows.shape))
        values = matrix[sets, _on(matrix, rows), _on(matrix, columns)]
        weights = values.float().abs()
        if which < 2:  # A or B
            k = rows if which and problem.layout == "nn" else columns
            scale = powers[sets, _on(matrix, k)].float()
            weights = torch.ldexp(weights, scale if which else -scale)
        best = weights.argmax(0)
        largest = values.gather(0, best[None])[0].view(torch.int16).cpu().numpy()
        drawn = best.cpu().numpy(), np.arange(len(chosen))
        row[chosen], column[chosen], bits[chosen] = rows[drawn], columns[drawn], largest.view(np.uint16)
    return row, column, bits


def _one_each(number: np.ndarray, over: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which touches change their set, at most one of each, and a drawn one: of those that come when the set's call is
    over or of the others that are wanted, either kind as often where there are both.
    """
    found = np.zeros(len(number), bool)
    weights = rng.random(len(number))
    which = np.flatnonzero(over | wanted)
    late = _dealt(number.max() + 1, 2, rng) == 1
    preferred = late[number[which]] == over[which]
    ordered = which[np.lexsort((weights[which], ~preferred, number[which]))]
    found[ordered[np.unique(number[ordered], return_index=True)[1]]] = True
    return found


def _dealt(count: int, kinds: int, rng: np.random.Generator) -> np.ndarray:
    """So many drawn numbers below `kinds`, each as often as the others: a window of few calls should miss none."""
    return (rng.permutation(count) + rng.integers(kinds)) % kinds


def _written(place: np.ndarray, bits: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """What each touch of a `place` (set, operand, row, column) writes: the negative of the element, where it
    changes it or comes after the touch that did.
    """
    calls = np.arange(len(bits))
    change = np.full(place[:, 0].max() + 1, len(bits))  # of each set; behind the end where it has none
    change[place[changes, 0]] = calls[changes]
    change = change[place[:, 0]]
    later = calls[change < calls]
    again = later[(place[later] == place[change[later]]).all(axis=1)]
    written = np.where(changes, bits ^ SIGN, bits)
    written[again] ^= SIGN
    return written


def _matrices(given: Sequence[Tensor]) -> list[Tensor]:
    """Operands [sets, …] as matrices [sets, rows, columns]: a vector has one row."""
    return [tensor if tensor.dim() == 3 else tensor[:, None] for tensor in given]


def _address(matrix: Tensor, number: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Of each of these elements, the address in bytes."""
    strides = np.array(matrix.stride(), np.int64)
    return matrix.data_ptr() + matrix.element_size() * (np.stack([number, row, column], axis=1) @ strides)


def _on(matrix: Tensor, numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(matrix.device)
