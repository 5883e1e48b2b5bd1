"""A budget of wall time that interrupts the work under way, as Ctrl-C would."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


class TimeUp(BaseException):
    """The budget is spent. Like KeyboardInterrupt it is no Exception, so that no handler takes it for a fault."""


class Deadline:
    """A deadline so many `seconds` from now; 0 is none."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds if seconds else math.inf

    def left(self) -> float:
        """Seconds left; negative after the deadline, infinite where there is none."""
        return self._until - time.monotonic()

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Raises TimeUp in the body as soon as only so many seconds are left.

        As with Ctrl-C, a call into a library raises it only when it returns, and the library may swallow it: code that
        continues afterwards should look at `left` again. Works in the main thread of a process only.
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
