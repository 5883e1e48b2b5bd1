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

What outputs then may be is said in `states.py`.
"""

import math
import secrets
import threading
import time
from collections.abc import Sequence

import numpy as np

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
Look = tuple[dict[int, int], np.ndarray, np.ndarray]
"""The calls whose inputs had changed, each with the word; then the calls that were looked at, and their samples."""


class Perturbation:
    """For a batch of `calls` packed slots from `first` on. Calling it looks and changes; `told` is when it told that
    the batch was not over, by `time.perf_counter`. `late` says that the batch was over before it came to that, as on a
    machine too busy to let the parent look in time: no call had changed inputs, and `told` is infinite.

    `conclude` is called when the batch is over and nothing runs: then `changed` are the slots whose inputs did change,
    each with the word of the inputs that changed, `unsure` those of them whose call may have begun before, and `early`
    is a slot whose output was written to before its call, None where there is none.

    With `change` False it takes as long, but leaves the inputs as they are: for the side that it is compared with.
    """

    def __init__(self, arena: Arena, first: int, calls: int, change: bool = True) -> None:
        assert first >= GUARDED, "only packed slots lie at equal distances"
        self.changed: dict[int, int] = {}
        self.unsure: dict[int, int] = {}
        self.early: int | None = None
        self.told = math.inf
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
        self._check_all_before(self._at_what_runs(change=False))
        running = self._at_what_runs(self._change)
        end = self._calls
        self.told = time.perf_counter() if running < end else math.inf
        beyond = min(running + self._near, end)
        further = sorted({beyond + int(share * (end - beyond)) for share in self._further}) if beyond < end else []
        looked = sorted({*self._anywhere, *(call - 1 for call in further)}, reverse=True)
        self._looks.append(self._change_and_look(further, self._near, looked, self._change))
        self._check_all_before(running)

    @property
    def late(self) -> bool:
        return self.told == math.inf

    def _check_all_before(self, running: int) -> None:
        """Whether all calls before that one were written to. Of several threads that work on calls of their own this
        look may have stopped one, where there are no more cores than these: it left a gap, and the others went on."""
        written = self._outputs[self._output :: self._output_step][:running] != self._poison
        if not written.all():
            self.early = self._first + running

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
            self.changed |= {self._first + call: word for call, word in changed.items()}
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
