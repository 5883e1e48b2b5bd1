"""The statistics, on results whose error is known by construction."""

import numpy as np
import pytest

from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, verify

PROBLEM = Problem(64, 72, 256)


@pytest.fixture
def case():
    a, b = inputs.normal(inputs.generator(), PROBLEM)
    return a, b, verify.reference(a, b, PROBLEM)


def test_reference_knows_both_layouts() -> None:
    rng = inputs.generator()
    for layout in ("nn", "tn"):
        problem = Problem(16, 24, 32, layout)
        a, b = inputs.normal(rng, problem)
        right = b if layout == "nn" else b.T
        assert np.allclose(verify.reference(a, b, problem), a.astype(np.float64) @ right.astype(np.float64))


def test_rounding_the_perfect_answer_is_one(case) -> None:
    _, _, exact = case
    assert verify.rho(exact.astype(np.float16), exact) == pytest.approx(1, abs=1e-3)
    assert verify.check_normal(exact.astype(np.float16), exact, PROBLEM)[0] is None


def test_fp32_accumulation_passes_at_any_k() -> None:
    for k in (8, 64, 4096):
        problem = Problem(32, 32, k)
        a, b = inputs.normal(inputs.generator(), problem)
        total = np.zeros((32, 32), dtype=np.float32)
        for step in range(k):  # strictly sequential: the least favourable order
            total += np.outer(a[:, step].astype(np.float32), b[:, step].astype(np.float32))
        found, rho, _ = verify.check_normal(total.astype(np.float16), verify.reference(a, b, problem), problem)
        assert found is None and rho < 1.02


@pytest.mark.parametrize("k", [64, 256])
def test_fp16_accumulation_fails_f32_and_passes_f16(k: int) -> None:
    problem = Problem(64, 64, k)
    a, b = inputs.normal(inputs.generator(), problem)
    total = np.zeros((64, 64), dtype=np.float16)
    for step in range(k):
        total = (total + np.outer(a[:, step], b[:, step]).astype(np.float32)).astype(np.float16)
    exact = verify.reference(a, b, problem)
    assert verify.rho(total, exact) == pytest.approx(np.sqrt(k / 2 + 0.5), rel=0.15)
    assert verify.check_normal(total, exact, problem)[0][0] is Status.IMPRECISE
    assert verify.check_normal(total, exact, Problem(64, 64, k, accumulate="f16"))[0] is None


def test_one_wrong_element_is_found(case) -> None:
    _, _, exact = case
    result = exact.astype(np.float16)
    result[7, 9] += np.float16(4)
    assert verify.check_normal(result, exact, PROBLEM)[0][0] in (Status.WRONG, Status.IMPRECISE)
    assert verify.check_exact(result, exact, "something")[0] is Status.WRONG


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_wrong_everywhere(case, value: float) -> None:
    _, _, exact = case
    good = exact.astype(np.float16)
    bad = good.copy()
    bad[3, 3] = value
    assert verify.check_normal(bad, exact, PROBLEM)[0][0] is Status.WRONG
    assert verify.check_exact(bad, exact, "something")[0] is Status.WRONG
    assert verify.check_timed(bad[None], good[None], PROBLEM)[0] is Status.WRONG


def test_timed_outputs_may_differ_by_the_order_of_summation_only() -> None:
    problem = Problem(64, 64, 4096)
    a, b = inputs.normal(inputs.generator(), problem)
    forward = np.zeros((64, 64), dtype=np.float32)
    for step in range(4096):
        forward += np.outer(a[:, step].astype(np.float32), b[:, step].astype(np.float32))
    blas = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
    assert verify.check_timed(forward.astype(np.float16)[None], blas[None], problem) is None
    coarse = (blas.astype(np.float32) * (1 + 2e-3 * np.sign(np.random.randn(64, 64)))).astype(np.float16)
    assert verify.check_timed(coarse[None], blas[None], problem) is not None


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("k", [8, 64, 1024, 16384])
def test_integer_inputs_keep_every_partial_sum_exact(accumulate: str, layout: str, k: int) -> None:
    problem = Problem(24, 16, k, layout, accumulate)
    rng = inputs.generator()
    for make in (inputs.exact_integers, inputs.wide_integers):
        a, b = make(rng, problem)
        assert a.shape == (24, k) and b.shape == problem.b_shape
        assert (a == np.rint(a)).all() and (b == np.rint(b)).all()
        assert np.abs(b).max() > 0
        right = b if layout == "nn" else b.T
        total = np.abs(a).astype(np.float64) @ np.abs(right).astype(np.float64)
        assert total.max() <= inputs.EXACT_SUM[accumulate]
        assert np.isfinite(verify.reference(a, b, problem).astype(np.float16)).all()


def test_inputs_are_fresh() -> None:
    one, other = (inputs.normal(inputs.generator(), PROBLEM)[0] for _ in range(2))
    assert (one != other).mean() > 0.9
