"""The single calls of a check: on which inputs they are, and what each finds out."""

from collections.abc import Sequence

import pytest
import torch

from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import checks, inputs, verify
from cudal2.worker.outcome import CandidateFailed

PROBLEM = Problem(40, 24, 64)


def product(given: Sequence[torch.Tensor]) -> torch.Tensor:
    return verify.reference(given, PROBLEM).half()


def check(run_on):
    return checks.check(run_on, PROBLEM, inputs.generator(), 1)


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
            checks.check(run_on, problem, inputs.generator(), 1)
        assert failed.value.status is Status.WRONG and failed.value.known["rho"] > 10
        return failed.value.reason

    def otherwise(given, sign: int = 1):
        return verify.reference((sign * given[0], given[1].reshape(swapped.b_shape)), swapped).half()

    said = reason(otherwise)
    assert f"right for layout {other}, the problem asks for {layout}" in said and "ρ" in said
    assert "layout" not in reason(lambda given: otherwise(given, -1))
    assert "layout" not in reason(lambda given: verify.reference(given, problem).half().flip(0))
