"""Whatever a reader does with what a stranger wrote, who asked it goes on, and knows whose fault it was."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from cudal2.records import HarnessFault
from cudal2.worker import apart

kept = [1]


def found(more: bytes) -> tuple[bytes, int]:
    kept.append(2)
    return more * 3, os.getpid()


def test_what_is_found_comes_back_and_nothing_else_changes() -> None:
    for count in (1_000_000, 1):
        text, pid = apart.read(found, b"x" * count, seconds=20)
        assert len(text) == 3 * count and pid != os.getpid() and kept == [1]


def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("line 3"), HarnessFault("no disk", "Make room"), OSError(28, "no space")])
def test_what_a_reader_says_is_said_here(error: Exception) -> None:
    with pytest.raises(type(error)) as told:
        apart.read(raises, error, seconds=20)
    assert told.value.args == error.args and not isinstance(told.value, apart.Unread)


def endless() -> None:
    while True:
        pass


def sleepy() -> None:
    time.sleep(1000)


@pytest.mark.parametrize("reader", [endless, sleepy])
def test_who_does_not_come_to_an_end_is_ended(reader) -> None:
    with pytest.raises(apart.Slow):
        apart.read(reader, seconds=0.5)


def breaks() -> None:
    raise AssertionError("nobody thought of this")


def dies() -> None:
    os._exit(1)


def hungry() -> int:
    return len(bytearray(1 << 30))


def huge() -> bytes:
    return bytes(100 << 20)


@pytest.mark.parametrize("reader", [breaks, dies, hungry, huge])
def test_what_breaks_a_reader_is_the_texts_fault(reader) -> None:
    with pytest.raises(apart.Unread) as told:
        apart.read(reader, seconds=20, memory=1 << 28)
    assert not isinstance(told.value, apart.Slow)
    assert apart.read(len, b"text", seconds=20) == 4, "the next one is read as ever"


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_reader_that_the_system_kills_says_nothing_of_the_text() -> None:
    with pytest.raises(apart.Slow):
        apart.read(killed, seconds=20)


class Unreadable:
    """What a reader cannot even take in."""

    def __reduce__(self) -> tuple:
        return dies, ()


def test_a_reader_that_never_saw_the_text_is_the_harness_fault() -> None:
    with pytest.raises(HarnessFault):
        apart.read(len, Unreadable(), seconds=20)


def test_limits_that_whoever_started_it_has_are_kept() -> None:
    code = (
        f"import resource, sys; sys.path[:] = {sys.path!r}; from cudal2.worker import apart;"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)); print(apart.read(len, b'four', seconds=20))"
    )
    dropped = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"] if os.geteuid() == 0 else []
    if dropped and (not shutil.which("setpriv") or subprocess.run([*dropped, "true"]).returncode):
        pytest.skip("root cannot give up what lets it raise limits")
    done = subprocess.run([*dropped, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4"


def test_a_fork_of_who_asks_holds_nothing_up() -> None:
    stop, forked = threading.Event(), list[int]()

    def forks() -> None:
        while not stop.wait(0.01):
            if not (child := os.fork()):
                time.sleep(1000)
                os._exit(0)
            forked.append(child)

    with warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")
        forking = thread.submit(forks)
        try:
            assert [apart.read(len, b"text", seconds=20) for _ in range(20)] == [4] * 20
        finally:
            stop.set()
            forking.result()
            ended = [os.waitpid(child, os.WNOHANG)[0] for child in forked]
            for child in forked:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    assert ended and not any(ended), "none of them had to end first"


def test_a_folder_that_is_gone_is_no_matter(tmp_path) -> None:
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}; from cudal2.worker import apart;"
        "os.rmdir(os.getcwd()); print(apart.read(len, b'four', seconds=20))"
    )
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "gone", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "4"


def test_many_threads_read_apart_while_others_take_locks(tmp_path) -> None:
    def both(number: int) -> int:
        with FileLock(tmp_path / f"lock {number % 3}"):
            return apart.read(len, b"x" * number, seconds=20)

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(both, range(200))) == list(range(200))


def test_a_servant_that_is_killed_is_started_again() -> None:
    assert apart.read(len, b"one", seconds=20) == 3
    assert apart._servant._process
    apart._servant._process.kill()
    apart._servant._process.wait()
    assert apart.read(len, b"four", seconds=20) == 4


def test_who_asks_ends_beside_a_fork_of_it() -> None:
    code = (
        f"import os, sys, time; sys.path[:] = {sys.path!r}; from cudal2.worker import apart;"
        "apart.read(len, b'', seconds=20); os.fork() or (time.sleep(30), os._exit(0))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=20, check=True)


def test_readers_end_with_who_asked(tmp_path) -> None:
    mark = tmp_path / "mark"
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from cudal2.worker import apart; from worker.test_apart import says;"
        f"apart.read(says, {str(mark)!r}, seconds=60)"
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
