"""Who may use the device when."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cudal2.worker.backend import device_lock
from cudal2.worker.sandbox import jail


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(jail, "scratch", lambda: tmp_path)


def entered(exclusive: bool, name: str = "device") -> threading.Event:
    """Set when another thread holds the device; it gives it back at once."""
    inside = threading.Event()

    def enter() -> None:
        with device_lock(exclusive, name):
            inside.set()

    threading.Thread(target=enter, daemon=True).start()
    return inside


def test_who_times_is_alone_and_builders_share():
    with device_lock(exclusive=True):
        assert not any(entered(exclusive).wait(0.1) for exclusive in (True, False))
        assert entered(True, "another").wait(5)
    with device_lock(exclusive=False):
        assert entered(False).wait(5)
        assert not entered(True).wait(0.1)


def test_one_who_times_kernel_after_kernel_does_not_keep_another_waiting():
    held, turns = threading.Event(), []

    def times(name: str) -> None:
        for _ in range(20):
            with device_lock(exclusive=True):
                held.set()
                turns.append(name)
                time.sleep(0.01)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(times, "first")
        held.wait()
        second = pool.submit(times, "second")
        first.result(), second.result()
    assert turns[:25].count("second") >= 8
