"""Threads of a stopped process wake up on cores of their own, and are free afterwards."""

import os
import signal
import subprocess
import sys
import time

import pytest

from cudal2.worker.cpu.session import Placement, cores

ALL = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(ALL) < 2, reason="needs two cores")
BUSY = """
import os, sys, threading
chosen, lock = int(sys.argv[1]), threading.Lock()
def idle():
    threading.Event().wait()
def busy():
    lock.acquire()
    if chosen >= 0: os.sched_setaffinity(0, [chosen])
    print(threading.get_native_id(), flush=True)
    lock.release()
    while True: sum(range(10000))
threading.Thread(target=idle).start()
for _ in range(2): threading.Thread(target=busy).start()
threading.Event().wait()
"""


@pytest.fixture
def stopped(request):
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(request.param)], stdout=subprocess.PIPE, text=True)
    busy = [int(process.stdout.readline()) for _ in range(2)]
    time.sleep(0.5)
    process.send_signal(signal.SIGSTOP)
    yield process.pid, busy
    process.kill()
    process.wait()
    process.stdout.close()


@several
@pytest.mark.parametrize("stopped", [-1], indirect=True)
def test_the_busy_threads_are_bound_apart_and_then_free(stopped):
    process, busy = stopped
    place = Placement(process, ALL)
    place.bind()
    first, second = (os.sched_getaffinity(thread) for thread in busy)
    assert len(first) == len(second) == 1 and first != second
    place.bind()  # none of them has run since
    place.release()
    assert all(os.sched_getaffinity(thread) == set(ALL) for thread in busy)


@several
@pytest.mark.parametrize("stopped", [ALL[-1]], indirect=True)
def test_a_thread_that_chose_its_core_keeps_it(stopped):
    process, busy = stopped
    place = Placement(process, ALL)
    for step in (place.bind, place.release):
        step()
        assert all(os.sched_getaffinity(thread) == {ALL[-1]} for thread in busy)


def test_a_process_that_is_gone_has_no_threads():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    place = Placement(child.pid, ALL)
    place.bind()
    place.release()


def test_where_a_core_stays_idle_the_kernel_chooses():
    assert cores(len(ALL) - 1) == cores(1) == []
