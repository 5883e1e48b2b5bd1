"""Inputs that change while a timed batch runs, just before their calls: whoever worked ahead is found out.

A candidate sees the inputs of all calls of a batch. So that it cannot gain by doing the work of later calls early, the
parent looks at secret moments, how many of them nobody knows, how far the batch has come: the outputs are poisoned, so
the first call that has left an element of its output as it was is not over yet. The inputs of the next few calls then
change, and those of some further ones, for a batch may be worked on in any order; and a sample of each output round
there is noted down.

When the batch is over, it tells which calls were over at that moment: those whose sample was as it is in the end. What
merely was written to is no sign, for a candidate could write anything into the outputs of calls whose inputs it is
about to read. A call whose predecessor was still not over after the change has not begun, and must use the new value.
One whose output was written to before an earlier call was over gives its author away at once.

Concluding so from what one process reads on what another does takes a barrier on both sides: of the two, "the output
is not written yet" and "the old input is read", at most one can then happen (the litmus test "store buffering" in
Sewell et al., x86-TSO, CACM 53(7), 2010). The runner has one after every call. And it takes reads in order: the outputs
of later calls are looked at before those of earlier ones.

A call whose inputs changed while it ran may have found of each change the old value or the new one, and read an element
more than once. So each element of its output may stem from any combination of the changes that move it (`nearest`); all
others are what they are without.
"""

import secrets
import threading
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker import inputs
from cudal2.worker.cpu.arena import GUARDED, INPUTS, OUTPUTS, Arena

MOST = 4
"""Calls whose inputs change behind the one that runs, but of a batch at most an eighth, and one at least; and so many
further on."""
AROUND = 8
"""Calls before and behind it whose outputs are looked at."""
SAMPLE = 8
"""Elements of an output that are looked at: of a call that works on the next one, too, hardly all are done."""
ANYWHERE = 16
"""Calls that are looked at wherever they are in the batch."""
Element = tuple[int, int, int]
"""Of an input that changed: the operand's number (0 for A, 1 for B), row and column as it is stored; a vector is a
matrix of one row."""
Part = tuple[slice, slice]
"""Rows and columns of C."""
_EVERY = slice(None)


class Perturbation:
    """For a batch of `calls` packed slots from `first` on. Calling it looks and changes; `late` says that the batch was
    over before it came to that, as on a machine too busy to let the parent look in time: no call had changed inputs.

    `conclude` is called when the batch is over and nothing runs: then `changed` are the slots whose inputs did change,
    `unsure` those of them whose call may have begun before, each with the word of the inputs that changed, and `early`
    is a slot whose output was written to before its call, None where there is none.

    With `change` False it takes as long, but leaves the inputs as they are: for the side that it is compared with.
    """

    def __init__(self, arena: Arena, first: int, calls: int, change: bool = True) -> None:
        assert first >= GUARDED, "only packed slots lie at equal distances"
        self.changed: list[int] = []
        self.unsure: dict[int, int] = {}
        self.early: int | None = None
        self.late = True
        self._first, self._calls, self._change = first, calls, change
        self._inputs, self._outputs = arena.words(INPUTS), arena.words(OUTPUTS)
        (*starts, c), (next_start, *_, next_c) = (arena.calls[first : first + 2] // 2).tolist()
        self._input_step, self._output_step = next_start - starts[0], next_c - c
        self._poison = arena.problem.type.nan
        # Everything is drawn now, so that it is quick when the time has come.
        rng = np.random.default_rng(secrets.randbits(128))
        *sizes, size = (operand.elements for operand in arena.operands)
        self._sample = c + rng.integers(size, size=SAMPLE)
        self._output = int(self._sample[0])
        self._near = 1 + max(1, min(MOST, calls // 8))
        self._further = rng.random(min(MOST, calls // 8)).tolist()
        count = self._near + len(self._further)
        places = [start + rng.integers(size, size=count) for start, size in zip(starts, sizes)]
        self._places = np.choose(rng.integers(len(places), size=count), places).tolist()
        self._barrier = threading.Lock()
        self._anywhere = rng.integers(calls, size=ANYWHERE).tolist()
        self._looks: list[tuple[dict[int, int], np.ndarray, np.ndarray]] = []

    def __call__(self) -> None:
        running, end = self._running(), self._calls
        self.late = running == end
        # What runs may have begun before; only the sample tells. The first call has nothing before it that would.
        near = range(max(running, 1), min(running + self._near, end))
        around = range(min(running + AROUND, end - 1), max(running - AROUND, 0) - 1, -1)
        self._change_and_look(near, near.start - running, around)
        beyond = min(running + self._near, end)
        further = sorted({beyond + int(share * (end - beyond)) for share in self._further}) if beyond < end else []
        looked = sorted({*self._anywhere, *(call - 1 for call in further)}, reverse=True)
        self._change_and_look(further, self._near, looked)

    def _change_and_look(self, calls: Sequence[int], first: int, looked: Sequence[int]) -> None:
        """Change the sign of an input of each of these calls, at the places from `first` on: what changed looks like
        any normal. Then look at those outputs in their order.
        """
        sign = 0x8000 if self._change else 0
        words = {call: place + call * self._input_step for call, place in zip(calls, self._places[first:])}
        for word in words.values():
            self._inputs[word] ^= sign
        with self._barrier:  # its locked instructions keep the writes before the looks that follow
            pass
        self._looks.append((words, np.array(looked), self._samples(np.array(looked))))

    def conclude(self) -> None:
        """Compare what was seen with what the calls have left."""
        for changed, looked, seen in self._looks:
            over = (seen == self._samples(looked)).all(axis=1)
            known = dict(zip(looked.tolist(), over.tolist()))
            if self._change:
                self.changed += [self._first + call for call in changed]
                self.unsure |= {self._first + call: word for call, word in changed.items() if known[call - 1]}
            touched = (seen != self._poison).any(axis=1)
            for place in np.flatnonzero(touched):
                if not over[place + 1 :].all():  # earlier calls, and looked at later
                    self.early = self._first + int(looked[place])

    def _samples(self, calls: np.ndarray) -> np.ndarray:
        """Of the output of each of these calls, read in their order: 16-bit words [calls, SAMPLE]."""
        return self._outputs[self._sample + calls[:, None] * self._output_step]

    def _running(self) -> int:
        """The first call of the batch that is not over, if every call that was written to is."""
        low, high = 0, self._calls
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._written(middle) else (low, middle)
        return low

    def _written(self, call: int) -> bool:
        return self._outputs[self._output + call * self._output_step] != self._poison


def nearest(
    result: Tensor, reference: Tensor, given: Sequence[Tensor], places: Sequence[Element], problem: Problem
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


def _moved(spot: Element, tables: Sequence[Tensor]) -> Part:
    """The part of C that an element moves: a row for one of A, a column for one of B; what else there is broadcasts."""
    which, row, column = spot
    if which < 2:
        return (_EVERY, slice(column, column + 1)) if which else (slice(row, row + 1), _EVERY)
    rows, columns = tables[which].shape
    return slice(row, row + 1) if rows > 1 else _EVERY, slice(column, column + 1) if columns > 1 else _EVERY


def _nearest(
    result: Tensor, tables: Sequence[Tensor], spots: Sequence[Element], part: Part, problem: Problem
) -> Tensor:
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


def _flipped(table: Tensor, number: int, unseen: Sequence[Element]) -> Tensor:
    """An operand beside A and B in fp32, as it was before these changes."""
    before = table.float()
    for which, row, column in unseen:
        if which == number:
            before = before.clone()
            before[row, column] *= -1
    return before


def _part(table: Tensor, part: Part) -> Tensor:
    """What of an operand that broadcasts against C stands in that part of it."""
    rows, columns = (size if length > 1 else _EVERY for size, length in zip(part, table.shape))
    return table[rows, columns]
