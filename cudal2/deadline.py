"""A budget of wall time that ends whatever is under way, wherever it is, as Ctrl-C would."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(BaseException):
    """The budget is spent. Like KeyboardInterrupt no Exception: nothing on its way should take it for a fault."""


class Deadline:
    """So many `seconds` from now on; 0 is no deadline."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds if seconds else math.inf

    def left(self) -> float:
        """Seconds to go; negative where it is past, infinite where there is none."""
        return self._until - time.monotonic()

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Raises TimeUp once no more than so many seconds are left, in the middle of whatever is done meanwhile.

        As with Ctrl-C, a call into a library that does not return raises it late, and what a library makes of it may be
        lost: whoever goes on after this looks at `left` again. To be used in the main thread of a process.
        """
        if math.isinf(self._until):
            yield
            return
        if (left := self.left() - seconds) <= 0:
            raise TimeUp
        before = signal.signal(signal.SIGALRM, _time_up)
        signal.setitimer(signal.ITIMER_REAL, left)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _time_up(*_: object) -> None:
    raise TimeUp
