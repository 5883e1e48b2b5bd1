"""A small process that forks a reader for each text that is read apart (`apart.py`): its side of the talk.

It has one thread and few modules, so that a fork is cheap, and safe whatever the threads of who asks are doing. Each
request is a header and two files: one with what to call, pickled, in whose place the answer is written, and a pipe. A
reader with limits says READY there before it looks at anything; beside it a guard waits for its end, and says how it
ended.
"""

import importlib
import os
import pickle
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from cudal2.records import HarnessFault
from cudal2.worker.sandbox.landlock import die_with

PATIENCE = 4
"""So many times its CPU seconds a reader, or a compiler, may take of wall time: beside many others it has less than a
processor."""
HEADER = 1 << 16
READY = b"ready"
DONE, LATE, DIED, KILLED = b"done", b"late", b"died", b"kill"
"""How a reader ended: it is through; it was too slow; it died of what it read; somebody, or the system, killed it."""
ANSWER_BYTES = 64 << 20
TOLD = (ValueError, HarnessFault, OSError)
"""What a reader raises on purpose."""


class Request(msgspec.Struct, frozen=True):
    """`module` has the function, and is imported once; limits are CPU seconds, and bytes beside what the reader has."""

    module: str
    seconds: float
    memory: int


class Unread(ValueError):
    """A reader did not come to its end, through the text it was given."""


def serve(channel: int, cores: set[int]) -> None:
    """Until who asks closes the channel, or is gone."""
    os.sched_setaffinity(0, cores)  # who started this may have had fewer for a while
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks hears it, and closes the channel
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards need nobody to wait for them
    with socket.socket(fileno=channel) as talk:
        while True:
            header, files, _, _ = socket.recv_fds(talk, HEADER, 2)
            if not header:
                return
            request = msgspec.json.decode(header, type=Request)
            with suppress(ImportError):
                importlib.import_module(request.module)
            server = os.getpid()
            if not os.fork():
                talk.close()
                _guard(request, files[0], files[1], server)
            for file in files:
                os.close(file)


def _guard(request: Request, asked: int, told: int, server: int) -> NoReturn:
    word = DIED
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(server)
        guard, reader = os.getpid(), os.fork()
        if not reader:
            _reader(request, asked, told, guard)
        late = False

        def end(*_: object) -> None:
            nonlocal late
            late = True
            os.kill(reader, signal.SIGKILL)

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * request.seconds)
        _, status = os.waitpid(reader, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signalled = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if late or signalled == signal.SIGXCPU:
            word = LATE
        elif signalled == signal.SIGKILL:
            word = KILLED
        elif not status:
            word = DONE
    finally:
        with suppress(OSError):
            os.write(told, word)
        os._exit(0)


def _reader(request: Request, asked: int, told: int, guard: int) -> NoReturn:
    code = 1
    try:
        die_with(guard)
        whole = max(1, round(request.seconds))
        _limit(resource.RLIMIT_CPU, whole, whole + 1)
        _limit(resource.RLIMIT_FSIZE, ANSWER_BYTES, ANSWER_BYTES)
        with os.fdopen(asked, "r+b") as file:
            file.seek(0)
            function, given = pickle.load(file)
            most = _data_now() + request.memory
            _limit(resource.RLIMIT_DATA, most, most)
            os.write(told, READY)
            answer = _answer(function, given)
            file.seek(0)
            file.truncate()
            file.write(answer)
        code = 0
    finally:
        os._exit(code)


def _limit(kind: int, soft: int, hard: int) -> None:
    """No more than that, nor than what whoever started this allows."""
    _, most = resource.getrlimit(kind)
    soft, hard = ((one if most == resource.RLIM_INFINITY else min(one, most)) for one in (soft, hard))
    resource.setrlimit(kind, (soft, hard))


def _answer(function: Any, given: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((function(*given), None))
    except TOLD as error:
        with suppress(Exception):
            return pickle.dumps((None, error))
        return pickle.dumps((None, Unread(str(error)[:300])))
    except Exception as error:  # noqa: BLE001 (whatever it is, the text has caused it)
        return pickle.dumps((None, Unread(f"it could not be read: {type(error).__name__}")))


def _data_now() -> int:
    """Bytes of this process that RLIMIT_DATA counts."""
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
