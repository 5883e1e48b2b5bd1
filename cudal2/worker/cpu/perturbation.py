"""Inputs that change while a timed batch runs, just before their calls: whoever worked ahead is found out.

A candidate sees the inputs of all calls of a batch. So that it cannot gain by doing the work of later calls early, the
parent looks once, at a secret moment, how far the batch has come: the outputs are poisoned, so the first call that has
left an element of its output as it was is not over yet. The inputs of the next few calls then change. A call whose
predecessor was still not over after the change has not begun, and must use the new value. A later call that has already
written its output gives its author away at once.

Concluding so from what one process reads on what another does takes a barrier on both sides: of the two, "the output
is not written yet" and "the old input is read", at most one can then happen (the litmus test "store buffering" in
Sewell et al., x86-TSO, CACM 53(7), 2010). The runner has one after every call.
"""

import secrets
import threading

import numpy as np

from cudal2.worker import inputs
from cudal2.worker.cpu.arena import GUARDED, INPUTS, OUTPUTS, Arena

MOST = 8
"""Calls whose inputs change, but of a batch at most an eighth, and one at least."""


class Perturbation:
    """For a batch of `calls` packed slots from `first` on. Calling it looks and changes; afterwards `changed` are the
    slots whose inputs did, `unsure` those of them whose call may have begun before, and `early` is a slot whose output
    was written before its call, None where there is none. `late` says that the batch was over before it came to that,
    as on a machine too busy to let the parent look in time: nothing was found out then.

    With `change` False it takes as long, but leaves the inputs as they are: for the side that it is compared with.
    """

    def __init__(self, arena: Arena, first: int, calls: int, change: bool = True) -> None:
        assert first >= GUARDED, "only packed slots lie at equal distances"
        self.changed: list[int] = []
        self.unsure: list[int] = []
        self.early: int | None = None
        self.late = True
        self._first, self._calls, self._change = first, calls, change
        self._inputs, self._outputs = arena.words(INPUTS), arena.words(OUTPUTS)
        (a, b, c), (next_a, _, next_c) = (arena.calls[first : first + 2] // 2).tolist()
        self._input_step, self._output_step = next_a - a, next_c - c
        # Everything is drawn now, so that it is quick when the time has come.
        rng = np.random.default_rng(secrets.randbits(128))
        m, n, k = arena.problem.m, arena.problem.n, arena.problem.k
        self._output = c + int(rng.integers(m * n))
        count = max(1, min(MOST, calls // 8))
        values = ((4 + 4 * rng.random(count)) * rng.choice((-1, 1), count)).astype(np.float16).view(np.uint16)
        places = [(a + int(rng.integers(m * k)), b + int(rng.integers(k * n)))[int(rng.integers(2))] for _ in values]
        self._changes = list(zip(places, values.tolist()))
        self._barrier = threading.Lock()

    def __call__(self) -> None:
        running = self._running()
        self.late = running == self._calls
        # The search may have ended behind calls that were done early, with one before them still running.
        for call in range(max(0, running - MOST), min(running, self._calls - 1)):
            if self._written(call + 1) and not self._written(call):
                self.early = self._first + call + 1
        for call, (place, value) in enumerate(self._changes, running + 1):
            if call >= self._calls:
                return
            at = place + call * self._input_step
            if self._written(call) and not self._written(running):
                self.early = self._first + call
            self._inputs[at] = value if self._change else self._inputs[at]
            with self._barrier:  # its locked instructions keep the write before the look that follows
                pass
            if self._change:
                self.changed.append(self._first + call)
                if self._written(call - 1):
                    self.unsure.append(self._first + call)

    def _running(self) -> int:
        """The first call of the batch that is not over."""
        low, high = 0, self._calls
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._written(middle) else (low, middle)
        return low

    def _written(self, call: int) -> bool:
        return self._outputs[self._output + call * self._output_step] != inputs.POISON
