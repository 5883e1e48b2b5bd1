"""What ends work before it is done: Ctrl-C and SIGTERM end a command within seconds, whatever it is doing, and a
budget of wall time (`Deadline`) interrupts the work under way as Ctrl-C would.

The first signal raises KeyboardInterrupt in the main thread, so that all work ends in good order. But if the main
thread waits inside a library (a collective of several processes, a kernel on the GPU), the exception comes only when
that returns, and some `except` may swallow it. So a second thread gets the signal, too. It ends the process after
PATIENCE seconds, or as soon as the same signal comes again. Only what was not yet on disk is lost then: every file here
survives a kill at any moment, and no process outlives the one that needs it.

A pool's worker process (`leave_with_parent`) leaves when its pool's process is gone, however that ended, or tells it to
(SIGTERM). Below it are compilers, candidates (often stopped) and the vendor's library, each in a process group of its
own. They are killed by groups, since a compiler has processes of its own, and only after the worker itself: it would
take their end for a verdict and write that to the cache. Where the worker is killed before it can do so, the kernel
does the rest: the jail and `confine.ends_with_parent` tie the first process of each group to the process that started
it.
"""

import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds for an end in good order."""

LEAVING_SECONDS = 2.0
"""How long a process may take to leave, and to end what is below it, before it is killed."""

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


def leave_with_parent() -> None:
    """From here on this process, a child of `multiprocessing`, leaves when its parent is gone, and upon SIGTERM.

    SIGINT is ignored: Ctrl-C reaches every process of a terminal, and is the parent's to handle.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # a handler, so that the next line has it reported
    signal.set_wakeup_fd(told)  # at once, even while the main thread waits inside a library
    threading.Thread(target=_leave, args=(heard,), daemon=True).start()


class ProcessPool(ProcessPoolExecutor):
    """An executor that `end` can end at any moment, while other threads submit to it or shut it down.

    A process that is killed while it sends a result leaves half of it in the pipe, and the executor's thread waits for
    the rest as long as anybody could write it. So this process gives up its own end of the pipe as soon as all others
    have theirs. `end` could not close it: `shutdown` does so too, and of two threads that close one file the second
    closes what a third has opened since.
    """

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future = super().submit(function, *arguments, **named)
        if len(self._processes) == self._max_workers:  # type: ignore[attr-defined]
            self._result_queue._writer.close()  # type: ignore[attr-defined]
        return future


def end(*executors: ProcessPool) -> None:
    """Tell their processes, which called `leave_with_parent`, to leave, and kill those that do not; what is under way
    is lost, and whoever waits for it gets BrokenProcessPool.
    """
    processes = [process for executor in executors for process in list((executor._processes or {}).values())]
    for process in processes:
        process.terminate()
    until = time.monotonic() + LEAVING_SECONDS
    for process in processes:
        if not wait([process.sentinel], max(0.0, until - time.monotonic())):
            process.kill()
            process.join()


def children(pid: int) -> list[int]:
    """The processes that `pid` started, or was left with, and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(") ")[2].split()[:2]
        except OSError:  # ended just now
            continue
        if int(parent) == pid and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def _leave(heard: int) -> None:
    parent = parent_process()
    assert parent is not None
    wait([heard, parent.sentinel])
    me = os.getpid()
    ends = [me]
    for child in children(me):
        with suppress(ProcessLookupError):
            ends.append(-child if os.getpgid(child) == child else child)
    # By another process, so that this one is the first to end.
    kill = ["/bin/sh", "-c", 'kill -s KILL -- "$@"', "sh", *map(str, ends)]
    subprocess.Popen(kill, start_new_session=True, stderr=subprocess.DEVNULL)
    time.sleep(5)
    os._exit(1)
