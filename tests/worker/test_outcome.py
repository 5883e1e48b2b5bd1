"""What a candidate may run in all; the single calls of a check: on which inputs they are, and what each finds out."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, outcome, verify
from cudal2.worker.cpu.session import COMMAND, DONE, REPLY, SIGNALLED, Side, pipes
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


DONE_REPLY = REPLY.pack(DONE, 0, 0)


@contextmanager
def answering(replies: Sequence[bytes], ahead: Sequence[bytes] = ()) -> Iterator[Side]:
    """A side whose process answers a command with each of these replies in turn; those `ahead` come unasked."""
    command_read, command_write, reply_read, reply_write = pipes()
    side = Side(command_write, reply_read, Idle(), 1, 5)

    def answer() -> None:
        for reply in replies:
            if os.read(command_read, COMMAND.size):
                os.write(reply_write, reply)

    for reply in ahead:
        os.write(reply_write, reply)
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield side
    finally:
        os.close(command_write)  # which ends the thread
        thread.join()
        for fd in (command_read, reply_read, reply_write):
            os.close(fd)


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
    with answering([DONE_REPLY, DONE_REPLY]) as side:
        assert side.run(0, 1) < 1 and side.allowance.left == math.inf
        with side.within(0.05), pytest.raises(CandidateFailed, match="in time"):
            side.run(0, 1)
        assert side.seconds == 5


@pytest.mark.parametrize("replies", [[DONE_REPLY[:8], DONE_REPLY], [DONE_REPLY + b"\0", DONE_REPLY[1:]], [b"\0"]])
def test_a_reply_comes_whole_or_is_none(replies: list[bytes]) -> None:
    """Whoever waits for the rest of one looks at nothing meanwhile."""
    with answering(replies) as side, pytest.raises(CandidateFailed, match="nonsense"):
        side.run(0, 1)


def test_who_has_ended_before_it_is_asked_has_said_why() -> None:
    """Of a thread that went on, say."""
    failure = pytest.raises(CandidateFailed, match="memory beside an input")
    with answering([], ahead=[REPLY.pack(SIGNALLED, signal.SIGSEGV, 1)]) as side, failure as failed:
        side.run(0, 1)
    assert failed.value.status is Status.OUT_OF_BOUNDS


def test_nobody_replies_before_it_is_asked() -> None:
    failure = pytest.raises(CandidateFailed, match="before it is asked")
    with answering([DONE_REPLY, DONE_REPLY], ahead=[DONE_REPLY]) as side, failure:
        side.run(0, 1)


PROBLEM = Problem(40, 24, 64)


def product(given: Sequence[torch.Tensor]) -> torch.Tensor:
    return verify.reference(given, PROBLEM).half()


def check(run_on):
    return outcome.check(run_on, PROBLEM, inputs.generator(), 1)


def test_normals_integers_and_the_same_normals_again() -> None:
    seen: list[list[torch.Tensor]] = []

    def honest(given):
        seen.append([tensor.clone() for tensor in given])
        return product(given)

    found = check(honest)
    assert (found.status, found.repeatable) == (Status.OK, True) and found.rho == pytest.approx(1, abs=0.05)
    normal, small, wide, again = seen
    assert all(torch.equal(one, other) for one, other in zip(normal, again))
    for a, b in (small, wide):
        assert torch.equal(a, a.round()) and torch.equal(b, b.round())
    assert wide[0].abs().min() > 1024
    assert not torch.equal(normal[0], normal[0].round())


@pytest.mark.parametrize("number", range(4))
def test_a_wrong_element_in_any_call_is_found(number: int) -> None:
    calls = []

    def run_on(given):
        calls.append(0)
        c = product(given)
        c[3, 5] += 2 * (len(calls) == number + 1) * c.abs().max()
        return c

    with pytest.raises(CandidateFailed) as failed:
        check(run_on)
    assert failed.value.status is Status.WRONG and len(calls) == number + 1
    assert failed.value.known.get("repeatable") is (False if number == 3 else None)
    assert failed.value.known["rho"] > 10 if number == 0 else failed.value.known["rho"] < 1.05


def test_how_imprecise_is_kept_and_what_is_not_finite_is_not() -> None:
    with pytest.raises(CandidateFailed) as failed:
        check(lambda given: product(given) + 1e-2)
    assert failed.value.status is Status.IMPRECISE
    assert f"ρ = {failed.value.known['rho']:.3g}" in failed.value.reason
    with pytest.raises(CandidateFailed) as failed:
        check(lambda given: product(given).mul_(torch.inf))
    assert not failed.value.known


def test_another_result_within_the_bounds_is_right_but_not_repeatable() -> None:
    calls = []

    def run_on(given):
        calls.append(0)
        c = product(given)
        if len(calls) == 4:
            exact = verify.reference(given, PROBLEM)[3, 5]
            beyond = torch.tensor(99.0 if exact > c[3, 5] else -99.0, dtype=torch.float16)
            c[3, 5] = torch.nextafter(c[3, 5], beyond)  # the other of the two that exact lies between
        return c

    found = check(run_on)
    assert found.status is Status.OK and not found.repeatable


def test_what_a_call_raises_is_the_verdict() -> None:
    def run_on(given):
        raise CandidateFailed(Status.OUT_OF_BOUNDS, "wrote beside the output")

    with pytest.raises(CandidateFailed, match="beside"):
        check(run_on)


@pytest.mark.parametrize("layout, other", [("tn", "nn"), ("nn", "tn")])
@pytest.mark.parametrize("n", [24, 64], ids=["any shape", "square B"])
def test_a_kernel_for_the_other_layout_is_told_so(layout, other, n) -> None:
    problem, swapped = Problem(40, n, 64, layout), Problem(40, n, 64, other)

    def reason(run_on) -> str:
        with pytest.raises(CandidateFailed) as failed:
            outcome.check(run_on, problem, inputs.generator(), 1)
        assert failed.value.status is Status.WRONG and failed.value.known["rho"] > 10
        return failed.value.reason

    def otherwise(given, sign: int = 1):
        return verify.reference((sign * given[0], given[1].reshape(swapped.b_shape)), swapped).half()

    said = reason(otherwise)
    assert f"right for layout {other}, the problem asks for {layout}" in said and "ρ" in said
    assert "layout" not in reason(lambda given: otherwise(given, -1))
    assert "layout" not in reason(lambda given: verify.reference(given, problem).half().flip(0))
