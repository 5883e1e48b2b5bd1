"""Ctrl-C and SIGTERM end a command within seconds, whatever it is doing.

The first signal raises KeyboardInterrupt in the main thread, so that all that is under way is left in order. A main
thread that waits inside a library (a collective of several processes, a kernel on the GPU) raises nothing until that
returns, and what it raises may be lost in somebody's `except`. So a second thread hears of the signal too. It ends the
process after PATIENCE seconds, or as soon as the same signal comes once more. That costs nothing but what was not yet
on disk: every file here bears a kill at any moment, and the processes below leave with this
one (`worker/pool/lifetime.py`).
"""

import os
import select
import signal
import sys
import threading
import time

PATIENCE = 10.0
"""Seconds for leaving in order."""

_first: int | None = None


def install() -> None:
    """Handle both signals from here to the end of this process, but those that it was started to ignore.

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
    """Says what ended the command and how to go on (`again`); the exit code, as shells have it: 128 + the signal."""
    number = signal.SIGINT if _first is None else signal.Signals(_first)
    if os.environ.get("RANK", "0") == "0":  # of several that train together, one speaks
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
    """The number of the next of our signals; others have their bytes here too."""
    while (number := os.read(heard, 1)[0]) not in (signal.SIGINT, signal.SIGTERM):
        pass
    return number
