"""What a candidate may run in all."""

import math
import os
import time

import pytest

from cudal2.records import Status
from cudal2.worker.cpu.session import DONE, REPLY, Side, pipes
from cudal2.worker.outcome import Allowance, CandidateFailed


def test_only_what_is_charged_counts() -> None:
    allowance = Allowance(10)
    time.sleep(0.02)
    assert allowance.left == 10
    for _ in range(2):
        with allowance.charged():
            before = allowance.left
            time.sleep(0.02)
            assert allowance.left <= before - 0.02, "while it runs, too"
    left = allowance.left
    assert 10 - 1 < left <= 10 - 0.04
    time.sleep(0.01)
    assert allowance.left == left
    with pytest.raises(KeyError), allowance.charged():
        raise KeyError
    assert allowance.left < left


class Idle:
    """A process that is always still."""

    inside = os.getpid()

    def signal(self, number: int) -> None: ...
    def stopped(self) -> bool:
        return True

    def busy_seconds(self) -> float:
        return 0.0

    def kill(self) -> None: ...


@pytest.mark.parametrize(("allowed", "seconds", "said"), [(0.05, 5, "in all"), (5, 0.05, "in time"), (-1, 5, "in all")])
def test_a_side_has_what_is_left_of_its_allowance_and_no_more_than_its_seconds(allowed, seconds, said) -> None:
    command_read, command_write, reply_read, reply_write = pipes()
    side = Side(command_write, reply_read, Idle(), 1, seconds, allowance=Allowance(allowed))
    started = time.perf_counter()
    with pytest.raises(CandidateFailed, match=said) as failed:
        side.run(0, 1)
    assert failed.value.status is Status.TIMEOUT and time.perf_counter() - started < 2
    for fd in (command_read, reply_write):
        os.close(fd)
    side.close()


def test_a_side_without_an_allowance_is_bounded_by_its_seconds_alone() -> None:
    command_read, command_write, reply_read, reply_write = pipes()
    side = Side(command_write, reply_read, Idle(), 1, 5)
    os.write(reply_write, 2 * REPLY.pack(DONE, 0, 0))
    assert side.run(0, 1) < 1 and side.allowance.left == math.inf
    with side.within(0.05), pytest.raises(CandidateFailed, match="in time"):
        side.run(0, 1)
    assert side.seconds == 5
    for fd in (command_read, reply_write):
        os.close(fd)
    side.close()
