"""What happens while the calls of a window run. Candidate and baseline go through the same history.

Before each call come touches, one or a few. Three of four write an element of an input (A, B, or what more there is) of
a set whose call is still to come. Mostly that is the value which stands there already; at times it is the element's
negative, so that the inputs are normals as before. So work that is done ahead is wrong. The fourth keeps an element of
what the call just over has written, in a log: it must be what stands there in the end. So an output is due when its
call is over, and work that is put off is seen, whatever of the inputs was copied for it. A kernel can read and write
the log, too; but each element is kept under a mask of its own, a one-time pad: who knows neither the element nor the
mask learns nothing from both together, and cannot put a later value in its place.

Every call has as many touches: no call tells from its own that the inputs of another have changed, and nothing that a
kernel may notice of them (the number of a launch, a pause) says what they were about; nor what they left in registers,
for behind them comes one that only ever writes a zero where one stands, at the head of the log.

`history.h` says how the touches are written. Nothing here needs a GPU.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from cudal2.problem import Problem

KEPT, CHANGE = 1 / 4, 1 / 2
"""Share of the touches that keep an element of an output; and of the others that change a value, if their set has not
been changed yet. One that changes nothing has to be minded by whoever works ahead, too."""
FEW, TOUCHES_OF_FEW, KEPT_OF_FEW = 16, 4, 1 / 2
"""In a window of so few calls so many touches come before each, of which that share keeps an element; the others change
something if they can."""
NEXT = 1 / 2
"""Share of the touches of inputs that go to the call that follows. The others are spread, short distances as often as
long ones."""
DRAWN = 8
"""So many elements of a matrix are drawn; the one that weighs most in C is touched."""

SIGN = np.uint16(0x8000)
"""The bit that a change flips, in every type of 16 bits."""

Touches = np.ndarray
"""Elements of TOUCH, as many for each call: those of its history, and an idle one."""
TOUCH = np.dtype([("where", "<u8"), ("source", "<u8"), ("value", "<u4"), ("unused", "<u4")])
"""Mirrors `Touch` of history.h: what stands at the address `source`, or 0 where there is none, goes to the address
`where`, with those of its bits changed that are set in `value`."""


class History(msgspec.Struct, frozen=True):
    """The order in which sets are called, and the touches, as many before each call: arrays of one element a touch.

    A touch goes to `row` and `column` of the operand number `operand` of the set `number`; a vector is a matrix of one
    row. `bits` are those of the value that it writes; `changes` says whether that is another than before. Where it is
    one of `keeps`, the operand is C, nothing is written there, and `bits` are the mask of the element: the next word of
    the log gets those bits of it changed.
    """

    order: list[int]
    number: np.ndarray
    operand: np.ndarray
    row: np.ndarray
    column: np.ndarray
    bits: np.ndarray
    changes: np.ndarray
    keeps: np.ndarray

    @property
    def each(self) -> int:
        """Touches before each call."""
        return len(self.number) // len(self.order)

    def touches(self, operands: Sequence[Tensor], log: Tensor, origin: int = 0) -> Touches:
        """The touches of these operands [sets, …], C the last, and a log, in bytes from the address `origin` on."""
        places = [_address(matrix, self.number, self.row, self.column) - origin for matrix in _matrices(operands)]
        place, head = np.choose(self.operand, places), log.data_ptr() - origin
        found = np.zeros((len(self.order), self.each + 1), TOUCH)
        touches, idle = found[:, :-1], found[:, -1]
        logged = head + log.element_size() * self.keeps.cumsum()
        assert self.keeps.sum() < len(log)
        touches["where"] = np.where(self.keeps, logged, place).reshape(touches.shape)
        touches["source"] = np.where(self.keeps, place, 0).reshape(touches.shape)
        touches["value"] = self.bits.reshape(touches.shape)
        idle["where"] = head
        return found.ravel()

    def logged(self, c: Tensor) -> Tensor:
        """What the log holds behind its head if C [sets,M,N], of 16-bit integers, was so when calls were over."""
        kept = c[tuple(_on(c, each[self.keeps]) for each in (self.number, self.row, self.column))]
        return kept ^ _on(c, self.bits[self.keeps].view(np.int16))

    def changed(self, operand: int) -> np.ndarray:
        """Which touches changed that operand."""
        return np.flatnonzero(self.changes & (self.operand == operand))

    def apply(self, given: Sequence[Tensor]) -> None:
        """Have inputs hold what each set's own call finds; they may have gone through the history, or not."""
        self._write(given, self.bits)

    def undo(self, given: Sequence[Tensor]) -> None:
        """Have inputs hold what they did before the history."""
        self._write(given, self.bits ^ SIGN)

    def _write(self, given: Sequence[Tensor], bits: np.ndarray) -> None:
        for operand, matrix in enumerate(_matrices(given)):
            which = self.changed(operand)
            place = [_on(matrix, each[which]) for each in (self.number, self.row, self.column)]
            value = _on(matrix, bits[which].view(np.int16)).view(matrix.dtype)
            matrix[place[0], place[1], place[2]] = value


def draw(
    order: Sequence[int],
    given: Sequence[Tensor],
    powers: Tensor,
    problem: Problem,
    rng: np.random.Generator,
) -> History:
    """A history of calls in this order, on input operands [sets, …] as they are before it.

    `powers` [sets,K] are those of two by which the columns of A are scaled, and the rows of B divided. Every input is
    touched as often as any other, however small it is: a bias that a kernel remembers is as wrong as a matrix.
    """
    few = len(order) <= FEW
    each = TOUCHES_OF_FEW if few else 1
    calls = np.arange(len(order)).repeat(each)
    count = len(calls)
    keeps = (np.arange(count) % round(1 / KEPT_OF_FEW) == 0 if few else rng.random(count) < KEPT) & (calls > 0)
    distance = (np.maximum(len(order) - calls, 1) ** rng.random(count)).astype(np.int64) - 1
    distance[rng.random(count) < NEXT] = 0
    number = np.array(order)[np.where(keeps, calls - 1, calls + distance)]
    changes = _one_each(number, ~keeps & (few | (rng.random(count) < CHANGE)), rng)
    operand = np.where(keeps, len(given), rng.integers(len(given), size=count))
    operand[changes] = _dealt(int(changes.sum()), len(given), rng)
    row, column, bits = _elements(number, operand, given, powers, problem, rng)
    row[keeps], column[keeps] = (rng.integers(size, size=keeps.sum()) for size in (problem.m, problem.n))
    written = _written(np.stack([number, operand, row, column], axis=1), bits, changes)
    written[keeps] = rng.integers(1 << 16, size=keeps.sum())
    return History(list(order), number, operand, row, column, written, changes, keeps)


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


def _one_each(number: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which touches change their set: of the wanted ones of each set a drawn one."""
    found = np.zeros(len(number), bool)
    which = rng.permutation(np.flatnonzero(wanted))
    found[which[np.unique(number[which], return_index=True)[1]]] = True
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
