"""Reading what a stranger shaped: compilers' messages, assembly, symbols.

A text can be made that takes a parser an hour, all memory, or an exception that nobody thought of. Here that is said of
the text (`Unread`), and neither holds up the threads beside it nor ends the worker: long ones, which can take long, are
read in a process of their own (`reader.py`). What a reader finds wrong it raises as a ValueError, which arrives as it
is; so do a HarnessFault and an OSError.
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
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker.reader import DIED, DONE, LATE, PATIENCE, TOLD, Request, Unread, unread

__all__ = ["LONG", "MEMORY", "PATIENCE", "Slow", "Unread", "read"]

T = TypeVar("T")

MEMORY = 2 << 30
"""Bytes that a reader may take beside what it begins with."""
LONG = 512 << 10
"""Bytes from which on a text is read apart, which takes some milliseconds more."""
START_SECONDS = 60.0
"""For the process that forks readers to start, on a machine that is busy."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from cudal2.worker import reader; reader.serve({channel}, {cores!r})"


class Slow(Unread):
    """It took too long; on a quieter machine it might not."""


def read(function: Callable[..., T], *given: Any, size: int, seconds: float, memory: int = MEMORY) -> T:
    """`function(*given)`, which reads `size` bytes; in another process, which has `seconds` of CPU time, where these
    are LONG: a function of a module then. Raises Unread, the kind Slow where the seconds were too few, and what the
    function raises that is no fault of its own."""
    if size >= LONG:
        return _apart(function, given, seconds, memory)
    try:
        return function(*given)
    except TOLD:
        raise
    except Exception as error:
        raise unread(error) from error


def _apart(function: Callable[..., T], given: tuple[Any, ...], seconds: float, memory: int) -> T:
    receiver, told = os.pipe()
    try:
        with os.fdopen(told, "wb"), os.fdopen(os.memfd_create("asked"), "w+b") as asked:
            pickle.dump((function, given, dict(os.environ), Path.cwd()), asked)
            asked.seek(0)
            _servant.ask(Request(function.__module__, seconds, memory), asked.fileno(), told)
        data = _received(receiver, time.monotonic() + PATIENCE * seconds + START_SECONDS)
    finally:
        os.close(receiver)
    answer, word = data[: -len(DONE)], data[-len(DONE) :]
    if word == LATE:
        raise Slow(f"it could not be read within {seconds:g} s")
    if word == DIED:
        raise Unread("whoever read it died")
    if word != DONE:
        raise HarnessFault("the process that reads what compilers write was ended", "Try again")
    found, error = pickle.loads(answer)
    if error is not None:
        raise error
    return found


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


def _received(receiver: int, until: float) -> bytes:
    """All that comes until the other end is closed. Raises HarnessFault where that takes too long."""
    parts: list[bytes] = []
    while True:
        if not select.select([receiver], [], [], max(0.0, until - time.monotonic()))[0]:
            raise HarnessFault("the process that reads what compilers write does not answer", "Try again; see doctor")
        part = os.read(receiver, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
