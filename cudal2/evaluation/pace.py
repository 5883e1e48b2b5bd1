"""Estimates how long the rest of an evaluation takes from its pace so far. Shapes come in a stratified order, so the
remaining ones are like those before. For each batch of shapes kernels are first found, perhaps written by a policy, and
then judged one by one, several per shape where they compete."""

import time
from collections.abc import Callable


class Pace:
    """The pace of an evaluation of so many `shapes`. `clock` returns seconds."""

    def __init__(self, shapes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._ahead, self._shapes, self._kernels, self._judged = shapes, 0, 0, 0
        self._finding = self._judging = 0.0

    def found(self, shapes: int, new: int, kernels: int) -> None:
        """Counts a batch of `shapes`, of which `new` have no row from before, with so many kernels to judge."""
        self._finding += self._lap()
        self._ahead -= shapes
        self._shapes += new
        self._kernels += kernels

    def judged(self) -> None:
        """Counts one verdict on these kernels."""
        self._judging += self._lap()
        self._judged += 1

    def left(self) -> float:
        """Seconds to go, 0 where they are not known yet. Assumes that no shape ahead has a row from before."""
        if not self._judged:
            return 0.0
        each = self._judging / self._judged
        a_shape = (self._finding + self._kernels * each) / self._shapes
        return (self._kernels - self._judged) * each + self._ahead * a_shape

    def _lap(self) -> float:
        before, self._since = self._since, self._clock()
        return self._since - before


def said(seconds: float) -> str:
    """`about 12 min left`; nothing for less than a second."""
    if seconds < 1:
        return ""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"about {seconds / length:.{int(unit == 'h')}f} {unit} left"
    return f"about {seconds:.0f} s left"
