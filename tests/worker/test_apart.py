"""Whatever a reader does with what a stranger wrote, who asked it goes on, and knows whose fault it was."""

import os
import time

import pytest

from cudal2.records import HarnessFault
from cudal2.worker import apart


def test_what_is_found_comes_back_and_nothing_else_changes() -> None:
    kept = [1]

    def found(more: bytes) -> tuple[bytes, int]:
        kept.append(2)
        return more * 3, os.getpid()

    text, pid = apart.read(found, b"x" * 1_000_000, size=apart.LONG, seconds=20)
    assert len(text) == 3_000_000 and pid != os.getpid() and kept == [1]


SIZES = pytest.mark.parametrize("size", [0, apart.LONG])


@SIZES
@pytest.mark.parametrize("error", [ValueError("line 3"), HarnessFault("no disk", "Make room"), OSError(28, "no space")])
def test_what_a_reader_says_is_said_here(error: Exception, size: int) -> None:
    def raises() -> None:
        raise error

    with pytest.raises(type(error)) as told:
        apart.read(raises, size=size, seconds=20)
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
    assert apart.read(os.getppid, size=apart.LONG, seconds=20) == os.getpid(), "the next one is read as ever"
