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
from itertools import combinations, product

import numpy as np
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker import inputs
from cudal2.worker.cpu.arena import GUARDED, INPUTS, OUTPUTS, Arena

MOST = 2
"""Calls whose inputs change behind the one that runs, but of a batch at most an eighth, and one at least; and so many
further on. Whoever reads one call ahead is found out by the first of these alone, so many looks tell more than many
calls."""
AROUND = 8
"""Calls before and behind it whose outputs are looked at."""
SAMPLE = 8
"""Elements of an output that are looked at: of a call that works on the next one, too, hardly all are done."""
ANYWHERE = 16
"""Calls that are looked at wherever they are in the batch."""
Element = tuple[int, int, int]
"""Of an input that changed: the operand's number (0 for A, 1 for B), row and column as it is stored; a vector is a
matrix of one row."""
Part = tuple[int | None, int | None]
"""Of C: a row, a column, an element, or all of it."""
_EVERY = slice(None)
Look = tuple[dict[int, int], np.ndarray, np.ndarray]
"""The calls whose inputs had changed, each with the word; then the calls that were looked at, and their samples."""


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
        self._looks: list[Look] = []

    def __call__(self) -> None:
        """What counts is how soon after the change is looked, lest the call that runs be over by then. So this is done
        twice, first without a change: a second time it takes a third as long, for whatever it touches is at hand.
        """
        self._at_what_runs(change=False)
        running = self._at_what_runs(self._change)
        end = self._calls
        self.late = running == end
        beyond = min(running + self._near, end)
        further = sorted({beyond + int(share * (end - beyond)) for share in self._further}) if beyond < end else []
        looked = sorted({*self._anywhere, *(call - 1 for call in further)}, reverse=True)
        self._looks.append(self._change_and_look(further, self._near, looked, self._change))

    def _at_what_runs(self, change: bool) -> int:
        """Change and look there; returns what runs. Without a change, too, it tells of outputs written too early."""
        running, end = self._running(), self._calls
        # What runs may have begun before; only the sample tells. The first call has nothing before it that would.
        near = range(max(running, 1), min(running + self._near, end))
        around = range(min(running + AROUND, end - 1), max(running - AROUND, 0) - 1, -1)
        self._looks.append(self._change_and_look(near, near.start - running, around, change))
        return running

    def _change_and_look(self, calls: Sequence[int], first: int, looked: Sequence[int], change: bool) -> Look:
        """Change the sign of an input of each of these calls, at the places from `first` on: what changed looks like
        any normal. Then look at those outputs in their order.
        """
        sign = 0x8000 if change else 0
        words = {call: place + call * self._input_step for call, place in zip(calls, self._places[first:])}
        for word in words.values():
            self._inputs[word] ^= sign
        with self._barrier:  # its locked instructions keep the writes before the looks that follow
            pass
        order = np.array(looked)
        return (words if change else {}), order, self._samples(order)

    def conclude(self) -> None:
        """Compare what was seen with what the calls have left."""
        for changed, looked, seen in self._looks:
            over = (seen == self._samples(looked)).all(axis=1)
            known = dict(zip(looked.tolist(), over.tolist()))
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
    moved = {spot: _moved(spot, tables) for spot in spots}
    expected = reference.clone()
    # Where the parts of two elements cross, both move C: smaller parts come later, and have the last word.
    for row, column in sorted(product(*map(set, zip(*moved.values()))), key=lambda part: -part.count(None)):
        moving = [spot for spot in spots if moved[spot][0] in (None, row) and moved[spot][1] in (None, column)]
        if moving:
            place = _lines(row), _lines(column)
            expected[place] = _nearest(result[place], tables, moving, place, problem)
    return expected


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
    rows, columns = place
    a, b, others = tables[0][rows], tables[1][:, columns], [_part(table, place).float() for table in tables[2:]]
    inner = sorted({column if not which else row for which, row, column in spots if which < 2})
    thin = a[:, inner].float(), b[inner].float()  # all of A and B that changed lies in these
    same = a.float() @ b.float() - thin[0] @ thin[1]
    finish = operators.find(problem.epilogue).finish
    chosen, distance = result, torch.full(result.shape, torch.inf, device=result.device)
    for size in range(len(spots) + 1):
        for unseen in combinations(spots, size):
            signs, flipped = torch.ones(2, len(inner)), {which for which, *_ in unseen}
            for which, row, column in unseen:
                if which < 2:
                    signs[which, inner.index(row if which else column)] = -1
            sums = same + (thin[0] * signs[0]) @ (thin[1] * signs[1][:, None])
            # An element of another operand that moves all of the part is all that it takes from there.
            found = finish(sums, [-other if number in flipped else other for number, other in enumerate(others, 2)])
            away = (found - result.float()).abs_().nan_to_num_(nan=torch.inf)
            nearer = (away < distance) if size else torch.ones_like(away, dtype=torch.bool)
            chosen, distance = torch.where(nearer, found.to(result.dtype), chosen), torch.where(nearer, away, distance)
    return chosen


def _part(table: Tensor, place: tuple[slice, slice]) -> Tensor:
    """What of an operand that broadcasts against C stands in that part of it."""
    rows, columns = (size if length > 1 else _EVERY for size, length in zip(place, table.shape))
    return table[rows, columns]
