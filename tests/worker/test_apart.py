"""Whatever a reader does with what a stranger wrote, who asked it goes on, and knows whose fault it was."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from cudal2.records import HarnessFault
from cudal2.worker import apart

kept = [1]


def found(more: bytes) -> tuple[bytes, int, str]:
    kept.append(2)
    return more * 3, os.getpid(), os.environ["CUDAL2_SAID"]


def test_what_is_found_comes_back_and_nothing_else_changes(monkeypatch) -> None:
    for said in ("once", "again"):
        monkeypatch.setenv("CUDAL2_SAID", said)
        text, pid, heard = apart.read(found, b"x" * 1_000_000, size=apart.LONG, seconds=20)
        assert len(text) == 3_000_000 and pid != os.getpid() and kept == [1] and heard == said


def raises(error: Exception) -> None:
    raise error


SIZES = pytest.mark.parametrize("size", [0, apart.LONG])


@SIZES
@pytest.mark.parametrize("error", [ValueError("line 3"), HarnessFault("no disk", "Make room"), OSError(28, "no space")])
def test_what_a_reader_says_is_said_here(error: Exception, size: int) -> None:
    with pytest.raises(type(error)) as told:
        apart.read(raises, error, size=size, seconds=20)
    assert told.value.args == error.args and not isinstance(told.value, apart.Unread)


def endless() -> None:
    while True:
        pass


def sleepy() -> None:
    time.sleep(1000)


@pytest.mark.parametrize("reader", [endless, sleepy])
def test_who_does_not_come_to_an_end_is_ended(reader) -> None:
    with pytest.raises(apart.Slow):
        apart.read(reader, size=apart.LONG, seconds=0.5)


def breaks() -> None:
    raise AssertionError("nobody thought of this")


def dies() -> None:
    os._exit(1)


def hungry() -> int:
    return len(bytearray(1 << 30))


@pytest.mark.parametrize(("reader", "size"), [(breaks, 0), *((one, apart.LONG) for one in (breaks, dies, hungry))])
def test_what_breaks_a_reader_is_the_texts_fault(reader, size) -> None:
    with pytest.raises(apart.Unread) as told:
        apart.read(reader, size=size, seconds=20, memory=1 << 28)
    assert not isinstance(told.value, apart.Slow)
    assert apart.read(len, b"text", size=apart.LONG, seconds=20) == 4, "the next one is read as ever"


def test_many_threads_read_apart_while_others_take_locks(tmp_path) -> None:
    def both(number: int) -> int:
        with FileLock(tmp_path / f"lock {number % 3}"):
            return apart.read(len, b"x" * number, size=apart.LONG, seconds=20)

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(both, range(200))) == list(range(200))


def test_a_servant_that_is_killed_is_started_again() -> None:
    assert apart.read(len, b"one", size=apart.LONG, seconds=20) == 3
    assert apart._servant._process
    apart._servant._process.kill()
    apart._servant._process.wait()
    assert apart.read(len, b"four", size=apart.LONG, seconds=20) == 4


def test_who_asks_ends_beside_a_fork_of_it() -> None:
    code = (
        f"import os, sys, time; sys.path[:] = {sys.path!r}; from cudal2.worker import apart;"
        "apart.read(len, b'', size=apart.LONG, seconds=20); os.fork() or (time.sleep(30), os._exit(0))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=20, check=True)


def test_readers_end_with_who_asked(tmp_path) -> None:
    mark = tmp_path / "mark"
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from cudal2.worker import apart; from worker.test_apart import says;"
        f"apart.read(says, {str(mark)!r}, size=apart.LONG, seconds=60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    while not mark.exists() or not mark.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    reader, until = int(mark.read_text()), time.monotonic() + 20
    while Path(f"/proc/{reader}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{reader}").exists()


def says(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(60)
