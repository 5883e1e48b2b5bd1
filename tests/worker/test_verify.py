"""The statistics, on results whose error is known by construction; the same on every device there is."""

import math

import numpy as np
import pytest
import torch

from cudal2.dtype import FP16
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, limits, verify

PROBLEM = Problem(64, 72, 256)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def rng(request) -> torch.Generator:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU here")
    return inputs.generator(request.param)


@pytest.fixture
def exact(rng) -> torch.Tensor:
    return verify.reference(inputs.normal(rng, PROBLEM), PROBLEM)


def accumulated(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, chunk: int, order=None) -> torch.Tensor:
    """C of a `tn` problem: products summed exactly in chunks, the running sum rounded to `kind` after each."""
    total = torch.zeros(len(a), len(b), dtype=kind, device=a.device)
    places = list(range(0, a.shape[1], chunk))
    for start in order(places) if order else places:
        part = a[:, start : start + chunk].double() @ b[:, start : start + chunk].double().T
        total = (total.double() + part).to(kind)
    return total.half()


def test_reference_knows_both_layouts(rng) -> None:
    for layout in ("nn", "tn"):
        problem = Problem(16, 24, 32, layout)
        a, b = inputs.normal(rng, problem)
        right = b if layout == "nn" else b.T
        wanted = a.cpu().numpy().astype(np.float64) @ right.cpu().numpy().astype(np.float64)
        np.testing.assert_allclose(verify.reference((a, b), problem).cpu(), wanted)


def test_fp32_reference_is_full_fp32_and_leaves_the_settings_alone(rng, monkeypatch) -> None:
    problem = Problem(64, 64, 512)
    normal, exact = inputs.normal(rng, problem), inputs.exact_integers(rng, problem)
    wanted = [verify.reference(data, problem) for data in (normal, exact)]
    monkeypatch.setattr(verify, "FP64_FLOP", 0)
    monkeypatch.setattr(verify, "FP64_FLOP_STRONG", 0)
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        found = [verify.reference(data, problem) for data in (normal, exact)]
        assert [backend.fp32_precision for backend in backends] == ["tf32", "tf32"]
    finally:
        for backend, precision in zip(backends, before):
            backend.fp32_precision = precision
    assert found[0].dtype is torch.float32 and wanted[0].dtype is torch.float64
    assert (found[0] - wanted[0]).abs().max() < 1e-4
    assert torch.equal(found[1].double(), wanted[1])


def test_ulp_is_the_spacing_of_every_finite_half() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.abs(halves) < FP16.largest]  # NumPy says infinity for the largest
    steps = verify.ulp(torch.from_numpy(halves.copy())).numpy()
    assert (steps == np.spacing(np.abs(halves)).astype(np.float32)).all()


def test_rounding_the_perfect_answer_is_one(exact) -> None:
    assert verify.rho(exact.half(), exact) == pytest.approx(1, abs=1e-3)
    found, rho, largest = verify.check_normal(exact.half(), exact, PROBLEM, 1)
    assert found is None and rho == pytest.approx(1, abs=1e-3)
    assert largest == float((exact.half().double() - exact).abs().max())


def test_statistics_do_not_depend_on_how_they_are_blocked(exact, monkeypatch) -> None:
    result = (exact * (1 + 1e-3 * torch.randn_like(exact))).half()
    whole = verify._errors(result, exact, 0.0)
    for block in (7, 72, 500):
        monkeypatch.setattr(verify, "BLOCK", block)
        assert verify._errors(result, exact, 0.0) == pytest.approx(whole)
    assert whole[3] > 0


def test_fp32_accumulation_passes_at_any_k(rng) -> None:
    for k in (8, 64, 4096):
        problem = Problem(32, 32, k)
        a, b = inputs.normal(rng, problem)
        total = accumulated(a, b, torch.float32, 1)  # strictly sequential: the least favourable order
        found, rho, _ = verify.check_normal(total, verify.reference((a, b), problem), problem, 1)
        assert found is None and rho < 1.02


@pytest.mark.parametrize("k,chunk", [(64, 1), (256, 1), (256, 16), (1024, 16)])
def test_fp16_accumulation_fails_f32_and_passes_f16(rng, k: int, chunk: int) -> None:
    problem, half = Problem(64, 64, k), Problem(64, 64, k, accumulate="f16")
    a, b = inputs.normal(rng, problem)
    total, exact = accumulated(a, b, torch.float16, chunk), verify.reference((a, b), problem)
    assert verify.rho(total, exact) == pytest.approx(math.sqrt(k / (2 * chunk) + 0.5), rel=0.15)
    assert verify.check_normal(total, exact, problem, chunk)[0][0] is Status.IMPRECISE
    assert verify.check_normal(total, exact, half, chunk)[0] is None
    backwards = accumulated(a, b, torch.float16, chunk, reversed)
    assert verify.check_timed(total[None], backwards[None], half, chunk) is None
    assert verify.check_timed(total[None], exact.half()[None], problem, chunk) is not None


def test_a_processor_s_fp16_sum_is_too_coarse_where_a_tensor_core_s_is_asked_for(rng) -> None:
    problem = Problem(64, 64, 1024, accumulate="f16")
    a, b = inputs.normal(rng, problem)
    coarse, fine = (accumulated(a, b, torch.float16, chunk) for chunk in (1, 16))
    exact = verify.reference((a, b), problem)
    assert verify.check_normal(coarse, exact, problem, 16)[0][0] is not Status.OK
    assert verify.check_timed(coarse[None], fine[None], problem, 16)[0] is Status.IMPRECISE


@pytest.mark.parametrize("k", [16, 24, 40, 48, 328])
def test_the_bound_is_what_rounding_after_every_chunk_gives_a_short_last_one_too(k: int) -> None:
    a, b = torch.randn(256, k).half(), torch.randn(k, 192).half()
    exact, sums = a.double() @ b.double(), torch.zeros(256, 192, dtype=torch.float16)
    for start in range(0, k, 16):
        sums = (sums.double() + a[:, start : start + 16].double() @ b[start : start + 16].double()).half()
    assert verify.rho(sums, exact) == pytest.approx(limits.rho_limit("f16", k, 16) / 1.15, rel=0.05)


def test_a_sum_within_one_chunk_is_rounded_once() -> None:
    assert limits.rho_limit("f16", 8, 16) == limits.rho_limit("f16", 16, 16) == pytest.approx(1.15)


def test_one_wrong_element_is_found(exact) -> None:
    result = exact.half()
    result[7, 9] += 4
    assert verify.check_normal(result, exact, PROBLEM, 1)[0][0] in (Status.WRONG, Status.IMPRECISE)
    assert verify.check_exact(result, exact, "something")[0] is Status.WRONG
    assert verify.check_timed(result[None], exact.half()[None], PROBLEM, 1)[0] is Status.WRONG


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_wrong_everywhere_and_named(exact, value: float) -> None:
    good = exact.half()
    bad = good.clone()
    bad[3, 5] = value
    for status, reason in (
        verify.check_values(bad),
        verify.check_normal(bad, exact, PROBLEM, 1)[0],
        verify.check_exact(bad, exact, "something"),
    ):
        assert status is Status.WRONG and "1 of 4608" in reason and "(3, 5)" in reason
    assert verify.check_timed(bad[None], good[None], PROBLEM, 1)[0] is Status.WRONG


def test_poisoned_output_is_unwritten(exact) -> None:
    result = exact.half()
    inputs.poison(result)
    assert "4608 of 4608" in verify.check_normal(result, exact, PROBLEM, 1)[0][1]


def test_zero_has_one_value(rng) -> None:
    zeros = torch.zeros(8, 8, dtype=torch.float64, device=rng.device)
    assert verify.check_exact(-zeros.half(), zeros, "zeros") is None


def test_timed_outputs_may_differ_by_the_order_of_summation_only(rng) -> None:
    problem = Problem(64, 64, 4096)
    a, b = inputs.normal(rng, problem)
    blas = (a.float() @ b.float().T).half()
    assert verify.check_timed(accumulated(a, b, torch.float32, 1)[None], blas[None], problem, 1) is None
    coarse = (blas.float() * (1 + 2e-3 * torch.randn_like(blas.float()).sign())).half()
    assert verify.check_timed(coarse[None], blas[None], problem, 1) is not None


def test_timed_outputs_may_lie_apart_in_memory(rng) -> None:
    room = torch.full((3, 64 * 72 + 40), math.nan, dtype=torch.float16, device=rng.device)
    strided = room.as_strided((3, 64, 72), (room.shape[1], 72, 1))
    inputs.fill_normal(rng, strided)
    assert int(room.isnan().sum()) == 3 * 40
    baseline = strided.clone()
    assert verify.check_timed(strided, baseline, PROBLEM, 1) is None
    strided[2, 63, 71] += 1
    assert verify.check_timed(strided, baseline, PROBLEM, 1)[0] is Status.WRONG


@pytest.mark.parametrize("accumulate", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("k", [8, 64, 1024, 16384])
def test_integer_inputs_keep_every_partial_sum_exact(rng, accumulate: str, layout: str, k: int) -> None:
    problem = Problem(24, 16, k, layout, accumulate)
    for make in (inputs.exact_integers, inputs.wide_integers):
        a, b = make(rng, problem)
        assert a.shape == (24, k) and b.shape == problem.b_shape and b.is_contiguous()
        assert torch.equal(a, a.round()) and torch.equal(b, b.round())
        assert (a != 0).any() and (b != 0).any()
        right = b if layout == "nn" else b.T
        total = a.double().abs() @ right.double().abs()
        assert total.max() <= inputs.EXACT_SUM[accumulate]
        assert verify.reference((a, b), problem).half().isfinite().all()


def test_wide_integers_are_odd_and_need_eleven_bits(rng) -> None:
    a, b = inputs.wide_integers(rng, Problem(512, 16, 64))
    assert ((a.abs() % 2) == 1).all() and a.abs().min() >= 1025 and a.abs().max() <= 2047
    assert abs(float(a.sign().float().mean())) < 0.1
    per_row = (b != 0).sum(1)
    assert (per_row <= 16).all() and (per_row > 0).all()


def test_normals_are_normal_and_fresh(rng, monkeypatch) -> None:
    monkeypatch.setattr(inputs, "DRAWN", 10_000)
    one, other = (torch.empty(1024, 512, dtype=torch.float16, device=rng.device) for _ in range(2))
    inputs.fill_normal(rng, one)
    inputs.fill_normal(inputs.generator(rng.device), other)
    assert float(one.float().mean()) == pytest.approx(0, abs=0.01)
    assert float(one.float().std()) == pytest.approx(1, abs=0.01)
    assert one.abs().max() > 4
    assert (one != other).float().mean() > 0.9


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_uneven_scales_change_no_product_and_leave_one_scale_no_digits(layout):
    rng = inputs.generator()
    problem = Problem(96, 80, 512, layout)
    a, b = inputs.uneven_normal(rng, problem)
    exact = verify.reference((a, b), problem)
    b_nk = b if layout == "tn" else b.T
    assert 0.9 < float((a.float() ** 2).mean(0).mul((b_nk.float() ** 2).mean(0)).mean()) < 1.1
    assert verify.check_normal(exact.half(), exact, problem, 1)[0] is None
    fixed = [(m.float() * 32767 / m.abs().max()).round() * m.abs().max() / 32767 for m in (a, b)]
    assert verify.check_normal(verify.reference(fixed, problem).half(), exact, problem, 1)[0]


def test_new_signs_leave_all_sizes_and_tell_nothing_of_the_old():
    normals = torch.empty(1 << 16, dtype=torch.float16)
    inputs.fill_normal(inputs.generator(), normals)
    before = normals.clone()
    inputs.flip_signs(normals)
    assert torch.equal(before.abs(), normals.abs())
    share = float((before.sign() == normals.sign()).float().mean())
    assert 0.48 < share < 0.52
