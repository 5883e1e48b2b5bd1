"""What ends work before it is done: Ctrl-C and SIGTERM end a command within seconds, whatever it is doing, and a
budget of wall time (`Deadline`) interrupts the work under way as Ctrl-C would.

The first signal raises KeyboardInterrupt in the main thread, so that all work ends in good order. But if the main
thread waits inside a library (a collective of several processes, a kernel on the GPU), the exception comes only when
that returns, and some `except` may swallow it. So a second thread gets the signal, too. It ends the process after
PATIENCE seconds, or as soon as the same signal comes again. Only what was not yet on disk is lost then: every file here
survives a kill at any moment, and child processes end with their parent (`worker/pool/lifetime.py`).
"""

import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 10.0
"""Seconds for an end in good order."""

_first: int | None = None


def install() -> None:
    """Handle both signals until the process ends, except those that it was started to ignore.

    Raises ValueError in any thread but the main one.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell does for a job in the background
            signal.signal(number, _handle)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(heard,), daemon=True).start()


def received() -> bool:
    """Whether a signal has come."""
    return _first is not None


def goodbye(again: str) -> int:
    """Prints what ended the command and how to continue (`again`); returns the exit code 128 + the signal."""
    number = signal.SIGINT if _first is None else signal.Signals(_first)
    if os.environ.get("RANK", "0") == "0":  # of several processes that train together, only one prints
        print(f"cudal2: stopped by {number.name}; {again}", file=sys.stderr, flush=True)
    return 128 + number


def _handle(number: int, _: object) -> None:
    global _first
    if _first is None:
        _first = number
        raise KeyboardInterrupt


def _end_in_time(heard: int) -> None:
    first = _next(heard)
    until = time.monotonic() + PATIENCE
    while select.select([heard], [], [], max(0.0, until - time.monotonic()))[0]:
        if _next(heard) == first:
            break
    print("cudal2: stopped at once", file=sys.stderr, flush=True)
    os._exit(128 + first)


def _next(heard: int) -> int:
    """The number of the next of our two signals; the pipe has bytes of other signals, too."""
    while (number := os.read(heard, 1)[0]) not in (signal.SIGINT, signal.SIGTERM):
        pass
    return number


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
