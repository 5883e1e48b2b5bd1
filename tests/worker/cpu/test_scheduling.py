"""Threads of a stopped process wake up on cores of their own and are free afterwards; who waits for one is seen."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from cudal2.config import WorkerConfig
from cudal2.worker import measurement
from cudal2.worker.cpu.scheduling import Placement, check_ours, cores, longest_wait, schedule

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
    place, ran = Placement(ALL), schedule(process)
    place.bind({}, ran)
    first, second = (os.sched_getaffinity(thread) for thread in busy)
    assert len(first) == len(second) == 1 and first != second
    place.bind(ran, schedule(process))  # none of them has run since
    place.release()
    assert all(os.sched_getaffinity(thread) == set(ALL) for thread in busy)


@several
@pytest.mark.parametrize("stopped", [ALL[-1]], indirect=True)
def test_a_thread_that_chose_its_core_keeps_it(stopped):
    process, busy = stopped
    place = Placement(ALL)
    for step in (lambda: place.bind({}, schedule(process)), place.release):
        step()
        assert all(os.sched_getaffinity(thread) == {ALL[-1]} for thread in busy)


def test_a_process_that_is_gone_has_no_threads():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    place, ran = Placement(ALL), schedule(child.pid)
    assert ran == {}
    place.bind({child.pid: (1, 1)}, {child.pid: (2, 2)})
    place.release()


def test_the_longest_wait_is_that_of_one_thread_new_ones_included():
    before = {1: (10, 3_000_000_000), 2: (10, 0)}
    after = {1: (20, 4_000_000_000), 2: (20, 500_000_000), 3: (5, 2_000_000_000)}
    assert longest_wait(before, after) == 2
    assert longest_wait(before, {1: after[1]}) == 1
    assert longest_wait(before, {}) == 0


def test_who_shares_a_core_waits_while_the_other_runs():
    """Whatever else the machine does: of two that never sleep one has the core at most."""
    busy = (
        "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); print(flush=True)\nwhile True: sum(range(10000))"
    )
    both = [subprocess.Popen([sys.executable, "-c", busy, str(ALL[0])], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for one in both:
            one.stdout.readline()
        before = [schedule(one.pid)[one.pid] for one in both]
        while True:
            after = [schedule(one.pid)[one.pid] for one in both]
            ran, waited = ([now[i] - then[i] for now, then in zip(after, before)] for i in (0, 1))
            if min(ran) > 100_000_000:
                break
            time.sleep(0.05)
        for other, mine in ((ran[1], waited[0]), (ran[0], waited[1])):
            assert mine > other / 2  # a wait is counted when it is over
    finally:
        for one in both:
            one.kill()
            one.wait()
            one.stdout.close()


def test_where_a_core_stays_idle_the_kernel_chooses():
    assert cores(len(ALL) - 1) == cores(1) == []


@pytest.mark.parametrize(("disturbed", "waited", "ok"), [(1.6, 0.2, True), (1.6, 0.22, False), (1e3, 0.9, True)])
def test_how_long_a_thread_may_wait_follows_what_a_user_allows(disturbed: float, waited: float, ok: bool) -> None:
    with nullcontext() if ok else pytest.raises(measurement.Disturbed):
        check_ours(waited, "fake", WorkerConfig(disturbed=disturbed))


def test_a_thread_that_never_ran_is_no_division_by_nothing() -> None:
    with pytest.raises(measurement.Disturbed):
        check_ours(1.0, "fake", WorkerConfig())
