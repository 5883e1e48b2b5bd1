"""Reading what a stranger shaped: compilers' messages, assembly, symbols.

A text can be made that takes a parser an hour, all memory, or an exception that nobody thought of. Here that is said of
the text (`Unread`), and neither holds up the threads beside it nor ends the worker: long ones, which can take long, are
read in a process of their own. What a reader finds wrong it raises as a ValueError, which arrives as it is; so do a
HarnessFault and an OSError.
"""

import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from cudal2.records import HarnessFault
from cudal2.worker.sandbox.landlock import die_with

T = TypeVar("T")

MEMORY = 2 << 30
"""Bytes that a reader may take beside what this process has."""
PATIENCE = 4
"""So many times its CPU seconds a reader, or a compiler, may take of wall time: beside many others it has less than a
processor."""
LONG = 512 << 10
"""Bytes from which on a text is read in a fork, which takes 20 ms and more where this process is large."""
_TOLD = (ValueError, HarnessFault, OSError)


class Unread(ValueError):
    """A reader did not come to its end, through the text it was given."""


class Slow(Unread):
    """It took too long; on a quieter machine it might not."""


def read(function: Callable[..., T], *given: Any, size: int, seconds: float, memory: int = MEMORY) -> T:
    """`function(*given)`, which reads `size` bytes; in a fork of this process, which has `seconds` of CPU time, where
    these are LONG. Raises Unread, the kind Slow where the seconds were too few, and what the function raises that is no
    fault of its own."""
    if size >= LONG:
        return _in_a_fork(function, given, seconds, memory)
    try:
        return function(*given)
    except _TOLD:
        raise
    except Exception as error:
        raise _unread(error) from error


def _unread(error: Exception) -> Unread:
    return Unread(f"it could not be read: {type(error).__name__}")


def _in_a_fork(function: Callable[..., T], given: tuple[Any, ...], seconds: float, memory: int) -> T:
    receiver, sender = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        os.close(receiver)  # or else it would wait for ever to be heard, where nobody is left
        _child(function, given, parent, sender, seconds, memory)
    os.close(sender)
    try:
        data = _received(receiver, time.monotonic() + PATIENCE * seconds)
    finally:
        os.close(receiver)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if data is None or os.WTERMSIG(status) == signal.SIGXCPU:
        raise Slow(f"it could not be read within {seconds:g} s")
    try:
        found, error = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError) as broken:
        raise Unread("whoever read it died") from broken
    if error is not None:
        raise error
    return found


def _child(
    function: Callable[..., Any], given: tuple[Any, ...], parent: int, sender: int, seconds: float, memory: int
) -> None:
    """Does not return."""
    try:
        die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends this one
        whole = max(1, round(seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
        most = _data_now() + memory
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        with os.fdopen(sender, "wb") as out:
            out.write(_answer(function, given))
    finally:
        os._exit(0)


def _answer(function: Callable[..., Any], given: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((function(*given), None))
    except _TOLD as error:
        with suppress(Exception):
            return pickle.dumps((None, error))
        return pickle.dumps((None, Unread(str(error)[:300])))
    except Exception as error:  # noqa: BLE001 (whatever it is, the text has caused it)
        return pickle.dumps((None, _unread(error)))


def _data_now() -> int:
    """Bytes of this process that RLIMIT_DATA counts."""
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))


def _received(receiver: int, until: float) -> bytes | None:
    """All that comes until the other end is closed; None where that takes too long."""
    parts: list[bytes] = []
    while True:
        if not select.select([receiver], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        part = os.read(receiver, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
