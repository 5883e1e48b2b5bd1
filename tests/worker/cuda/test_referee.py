"""What the referee finds out about a replay, on buffers in ordinary memory: candidates and vendor are Python here."""

import numpy as np
import pytest
import torch
from fake_gpu import PROBLEM, Candidate

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import parse
from cudal2.records import Status
from cudal2.worker.cuda.pairing import TimingContext, pair, pair_on_host
from cudal2.worker.gpu.arena import check_calls
from cudal2.worker.outcome import CandidateFailed

SEMAPHORES = CUDA_CONTRACT.semaphores
WORKSPACE = SEMAPHORES + 4096


SHORT, LONG = 1e-6, 5e-3
"""Seconds of a call: windows of short ones take most sets, those of long ones one or two."""


def judge(context: TimingContext, candidate: Candidate, name: str = "cublas-tn", seconds: float | None = None):
    """As the bench does: checked alone, then timed. A call takes about so many seconds, or short or long ones."""
    checks, _ = check_calls(candidate, context.arena, candidate.workspace, context.rounding)
    guess = seconds or float(np.random.default_rng().choice([SHORT, LONG]))
    return checks, pair(candidate.replay, guess, candidate.workspace, context, name, 2e-6)


@pytest.mark.parametrize("name", ["cublas-tn", "cublas-nn"])
def test_an_honest_candidate_gets_its_speedup(context: TimingContext, name: str) -> None:
    checks, timing = judge(context, Candidate(context.arena), name)
    assert checks.repeatable
    assert checks.rho == pytest.approx(1, abs=0.05)
    assert timing.low <= timing.speedup <= timing.high
    assert timing.speedup == pytest.approx(2.01, rel=0.01)
    assert (timing.baseline, timing.protocol) == (name, "device")


def test_a_workspace_and_its_semaphores_may_be_used(context: TimingContext) -> None:
    class Uses(Candidate):
        workspace = WORKSPACE

        def call(self, number):
            head = self.head()
            assert not head[: SEMAPHORES // 2].any()
            head[:] = 5
            super().call(number)
            head[: SEMAPHORES // 2] = 0

    assert judge(context, Uses(context.arena))[1].speedup > 1


def test_calls_on_the_hosts_clock_are_checked_too(context: TimingContext) -> None:
    candidate = Candidate(context.arena)
    assert pair_on_host(candidate.host, 0, context, "cublas-tn", "offline").speedup == pytest.approx(1)
    assert pair_on_host(candidate.host, 0, context, "cublas-nn", "server").speedup == pytest.approx(0.5)
    candidate.call = lambda number: None  # type: ignore[method-assign]
    with pytest.raises(CandidateFailed):
        pair_on_host(candidate.host, 0, context, "cublas-tn", "offline")


class WorksAhead(Candidate):
    """The first call of a replay does the others' work too; those find it done."""

    def __call__(self, sets, touches=None):
        self.done: dict = {}
        return super().__call__(sets, touches)

    def call(self, number):
        if not self.done:
            self.done = {other: self.multiply(other) for other in range(self.arena.buffers.sets)}
        self.write(number, self.done[number])


class WorksAheadOnA(WorksAhead):
    """As before, but looks whether A is still what it was."""

    def call(self, number):
        if self.done and not torch.equal(self.seen[number], self.arena.given[0][number]):
            self.write(number, self.multiply(number))
        else:
            self.seen = self.arena.given[0].clone() if not self.done else self.seen
            super().call(number)


class WritesAhead(Candidate):
    def call(self, number):
        for other in range(self.arena.buffers.sets):
            self.write(other, self.multiply(other))


class RightAtFirst(Candidate):
    def call(self, number):
        self.write(number, self.multiply(number) if self.calls <= 6 else self.multiply(number) * 1.5)


class Skips(Candidate):
    def call(self, number):
        if self.calls <= 4 or number % 2:
            super().call(number)


class KeepsResults(Candidate):
    """Answers again what it answered for these buffers before."""

    def call(self, number):
        self.kept = getattr(self, "kept", {})
        self.write(number, self.kept.setdefault(number, self.multiply(number)))


class ChangesInput(Candidate):
    def call(self, number):
        super().call(number)
        self.arena.given[0][number, 0, 0] += 1


class ChangesInputLater(Candidate):
    def call(self, number):
        super().call(number)
        if self.calls > 4:
            self.arena.given[1][number, 3, 3] += 1


class AddsUp(Candidate):
    def write(self, number, c):
        self.arena.c[number] += c


class LosesAnElement(Candidate):
    def write(self, number, c):
        c[-1, -1] = 0
        super().write(number, c)


class HalfSums(Candidate):
    def multiply(self, number):
        a, b = self.arena.given[0][number], self.arena.given[1][number].T
        total = torch.zeros(PROBLEM.m, PROBLEM.n, dtype=torch.float16)
        for k in range(PROBLEM.k):
            total += a[:, k : k + 1] * b[k : k + 1]
        return total


def beside(name: str, elements: int, later: bool = False):
    """A candidate that writes one element so far from the start of a matrix of the first set."""

    class Beside(Candidate):
        def call(self, number):
            super().call(number)
            at = self.arena.buffers
            start = at.workspace if name == "workspace" else at.offsets["abc".index(name)]
            if self.calls > (4 if later else 0):
                self.arena.memory[start // 2 + elements] = 1

    return Beside


class KeepsState(Candidate):
    """Remembers in memory that it never asked for."""

    def call(self, number):
        super().call(number)
        self.arena.memory[self.arena.buffers.workspace // 2 + 2000] = number


class LeavesSemaphore(Candidate):
    workspace = WORKSPACE

    def call(self, number):
        super().call(number)
        self.head()[7] = 1


WRONG, IMPRECISE, OUTSIDE = Status.WRONG, Status.IMPRECISE, Status.OUT_OF_BOUNDS


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (WorksAhead, {WRONG}),
        (WritesAhead, {OUTSIDE}),
        (RightAtFirst, {WRONG}),
        (Skips, {WRONG}),
        (KeepsResults, {WRONG}),
        (ChangesInput, {WRONG}),
        (ChangesInputLater, {WRONG}),
        (AddsUp, {WRONG}),
        (LosesAnElement, {WRONG, IMPRECISE}),
        (HalfSums, {WRONG, IMPRECISE}),
        (beside("a", -1), {OUTSIDE}),
        (beside("b", -1), {OUTSIDE}),
        (beside("c", -1), {OUTSIDE}),
        (beside("c", PROBLEM.m * PROBLEM.n), {OUTSIDE}),
        (beside("c", PROBLEM.m * PROBLEM.n, later=True), {OUTSIDE}),
        (beside("workspace", -1), {OUTSIDE, WRONG}),
        (beside("workspace", 0), {OUTSIDE, WRONG}),
        (KeepsState, {OUTSIDE, WRONG}),
        (LeavesSemaphore, {WRONG}),
    ],
)
def test_a_dishonest_candidate_is_found_out(
    context: TimingContext, kind: type[Candidate], expected: set[Status]
) -> None:
    with pytest.raises(CandidateFailed) as failed:
        judge(context, kind(context.arena))
    assert failed.value.status in expected, failed.value.reason


def test_working_ahead_is_found_out_by_either_input(context: TimingContext) -> None:
    """A perturbation may lie in A or in B: rereading one of them in every call does not help."""
    with pytest.raises(CandidateFailed):
        pair(WorksAheadOnA(context.arena).replay, 1e-6, 0, context, "cublas-tn", 2e-6)


def test_a_clock_that_was_tampered_with_is_implausible(context: TimingContext) -> None:
    class Hides(Candidate):
        def __call__(self, sets, touches=None):
            device, host = super().__call__(sets, touches)
            return device, host + 0.01

    with pytest.raises(CandidateFailed) as failed:
        judge(context, Hides(context.arena))
    assert failed.value.status is Status.IMPLAUSIBLE


def test_a_host_that_is_called_away_in_most_replays_accuses_nobody(context: TimingContext) -> None:
    class Busy(Candidate):
        replays = 0

        def __call__(self, sets, touches=None):
            self.replays += 1
            device, host = super().__call__(sets, touches)
            return device, host + (0.01 if self.replays % 9 else 0.0)

    pair(Busy(context.arena).replay, 1e-6, 0, context, "cublas-tn", 2e-6)


def test_guards_are_restored_for_the_next_candidate(context: TimingContext) -> None:
    with pytest.raises(CandidateFailed):
        judge(context, beside("c", -1)(context.arena))
    context.arena.restore()
    assert judge(context, Candidate(context.arena))[1].speedup > 1


BEYOND = [
    "3_24_32_tn_f32_bf16",
    "40_24_32_nn_f32_bf16_bias",
    "7_24_64_tn_f32_fp16_bias",
    "17_24_32_tn_f32_bf16_bias_gelu",
]
BEYOND += ["1_24_32_tn_f32_fp16_bias_gelu"]


@pytest.mark.parametrize("context", [parse(name) for name in BEYOND], ids=BEYOND, indirect=True)
def test_an_honest_candidate_of_any_problem_gets_its_speedup(context: TimingContext) -> None:
    """Also where its inputs changed before and behind its calls."""
    for name in ("cublas-tn", "cublas-nn"):
        assert judge(context, Candidate(context.arena), name)[1].speedup == pytest.approx(2.01, rel=0.01)


class RemembersBias(Candidate):
    """The bias of each set as it was when the window began. In windows of one call that is hardly ahead."""

    def __call__(self, sets, touches=None):
        self.old = [operand.clone() for operand in self.arena.given[2:]]
        return super().__call__(sets, touches)

    def multiply(self, number):
        now = self.arena.given
        self.arena.given = (*now[:2], *self.old)
        try:
            return super().multiply(number)
        finally:
            self.arena.given = now


class FinishesTwice(Candidate):
    """Rounds the product before it adds the bias."""

    def multiply(self, number):
        a, b, bias = (operand[number] for operand in self.arena.given)
        product = (a.float() @ (b.float().T if self.arena.problem.layout == "tn" else b.float())).to(a.dtype)
        return (product + bias).to(a.dtype)


class Truncates(Candidate):
    def multiply(self, number):
        a, b, bias = (operand[number].float() for operand in self.arena.given)
        exact = a @ (b.T if self.arena.problem.layout == "tn" else b) + bias
        bits = exact.contiguous().view(torch.int32) & -65536
        return bits.view(torch.float32).to(self.arena.c.dtype)


@pytest.mark.parametrize("kind", [RemembersBias, FinishesTwice, Truncates, KeepsResults, beside("b", 24 * 32)])
@pytest.mark.parametrize("context", [parse(BEYOND[1])], indirect=True)
def test_a_dishonest_candidate_with_a_bias_is_found_out(context: TimingContext, kind: type[Candidate]) -> None:
    with pytest.raises(CandidateFailed):
        judge(context, kind(context.arena), seconds=SHORT)


@pytest.mark.parametrize("context", [parse("17_24_64_tn_f32_bf16_bias_gelu")], indirect=True)
def test_a_bias_behind_an_activation_is_not_to_be_remembered(context: TimingContext) -> None:
    with pytest.raises(CandidateFailed):
        judge(context, RemembersBias(context.arena), seconds=SHORT)
