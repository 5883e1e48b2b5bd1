"""How long the rest of an evaluation takes, by what it took so far: its shapes come in a stratified order, so those to
come are like those before. First kernels are found for a batch of shapes, which may have a policy write them; then
they are judged one by one, several a shape where they compete."""

import time
from collections.abc import Callable


class Pace:
    """Of an evaluation of so many `shapes`. `clock` gives seconds."""

    def __init__(self, shapes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._ahead, self._shapes, self._kernels, self._judged = shapes, 0, 0, 0
        self._finding = self._judging = 0.0

    def found(self, shapes: int, new: int, kernels: int) -> None:
        """A batch: so many shapes, of which `new` are not known from before, with so many kernels to judge."""
        self._finding += self._lap()
        self._ahead -= shapes
        self._shapes += new
        self._kernels += kernels

    def judged(self) -> None:
        """One of these kernels."""
        self._judging += self._lap()
        self._judged += 1

    def left(self) -> float:
        """Seconds to go, 0 where nobody knows yet. Of shapes ahead, as if none were known from before."""
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
