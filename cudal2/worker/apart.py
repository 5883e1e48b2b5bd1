"""Reading what a stranger shaped: compilers' messages, assembly, symbols.

A text can be made that takes a parser an hour, all memory, or an exception that nobody thought of. Here that is said of
the text (`Unread`), and neither holds up the threads beside it nor ends the worker: each is read in a process of its
own (`reader.py`), which takes five milliseconds. What a reader finds wrong it raises as a ValueError, which arrives as
it is; so do a HarnessFault and an OSError. A reader that does not get so far as to look at the text, or that the system
kills, says nothing of the text.
"""

import atexit
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker.reader import DIED, DONE, KILLED, LATE, PATIENCE, READY, Request, Unread

__all__ = ["MEMORY", "PATIENCE", "Slow", "Unread", "read"]

T = TypeVar("T")

MEMORY = 2 << 30
"""Bytes that a reader may take beside what it begins with."""
START_SECONDS = 60.0
"""For the process that forks readers to start, on a machine that is busy."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from cudal2.worker import reader; reader.serve({channel}, {cores!r})"


class Slow(Unread):
    """It took too long, or the system ended it; on a quieter machine that might not be."""


def read(function: Callable[..., T], *given: Any, seconds: float, memory: int = MEMORY) -> T:
    """`function(*given)`, a function of a module, in another process, which has `seconds` of CPU time; its working
    directory and environment are no matter of the caller's.

    Raises Unread, the kind Slow where the seconds were too few, and what the function raises that is no fault of its
    own; HarnessFault where no reader could be started, or its end is not known.
    """
    receiver, told = os.pipe()
    with os.fdopen(receiver, "rb", buffering=0) as ending, os.fdopen(os.memfd_create("asked"), "w+b") as paper:
        with os.fdopen(told, "wb"):
            pickle.dump((function, given), paper)
            paper.flush()
            _servant.ask(Request(function.__module__, seconds, memory), paper.fileno(), told)
        end = _ending(ending.fileno(), time.monotonic() + PATIENCE * seconds + START_SECONDS)
        word = end.removeprefix(READY)
        if word == LATE:
            raise Slow(f"it could not be read within {seconds:g} s")
        if word == KILLED:
            raise Slow("whoever read it was killed")
        if end == READY + DIED:
            raise Unread("whoever read it died")
        if end != READY + DONE:
            raise HarnessFault("the process that reads what compilers write was ended", "Try again; see doctor")
        paper.seek(0)
        found, error = pickle.load(paper)
    if error is not None:
        raise error
    return found


def _ending(receiver: int, until: float) -> bytes:
    """All that is said of a reader, up to how it ended. Raises HarnessFault where that takes too long."""
    said = b""
    while not said.endswith((DONE, LATE, DIED, KILLED)):
        if not select.select([receiver], [], [], max(0.0, until - time.monotonic()))[0]:
            raise HarnessFault("the process that reads what compilers write does not answer", "Try again; see doctor")
        part = os.read(receiver, len(READY + DONE))
        if not part:
            return said
        said += part
    return said


class _Servant:
    """The process that forks readers, started when first asked, and again where it or this process is another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._talk: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: Request, *files: int) -> None:
        header = msgspec.json.encode(request)
        with self._lock:
            for fresh in (False, True):
                try:
                    socket.send_fds(self._channel(fresh), [header], list(files))
                    return
                except (BrokenPipeError, ConnectionResetError):
                    pass
        raise HarnessFault("the process that reads what compilers write does not start", "Try again; see doctor")

    def _channel(self, fresh: bool) -> socket.socket:
        if fresh or self._owner != os.getpid():
            if self._owner == os.getpid():
                self.close()
            self._talk, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            cores = os.sched_getaffinity(os.getpid())
            program = _PROGRAM.format(path=sys.path, channel=theirs.fileno(), cores=cores)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            self._owner = os.getpid()
        assert self._talk is not None
        return self._talk

    def forget(self) -> None:
        """In a fork of this process, where a thread may have held the lock that is no more."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """It ends where nobody can ask it any more, a fork of this process neither."""
        if self._owner == os.getpid() and self._talk is not None and self._process is not None:
            with suppress(OSError):
                self._talk.shutdown(socket.SHUT_RDWR)
            self._talk.close()
            self._process.wait()
            self._owner = 0


_servant = _Servant()
atexit.register(_servant.close)
os.register_at_fork(after_in_child=_servant.forget)
