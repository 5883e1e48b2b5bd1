"""The bounds for timed calls, each by itself: honest sums never meet them, whatever their order; coarse ones do."""

import math
import random

import pytest
import torch

from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, limits, verify

ORDERS = 8, 16, 32, None
"""How many products are summed by the library at once, in the order that it likes; None is all of them."""


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def rng(request) -> torch.Generator:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU here")
    return inputs.generator(request.param)


def products(rng: torch.Generator, calls: int, problem: Problem, *orders: int | None) -> list[torch.Tensor]:
    """[calls, M, N] for each order of summing in fp32."""
    shapes = (calls, problem.m, problem.k), (calls, problem.k, problem.n)
    a, b = (torch.randn(shape, generator=rng, device=rng.device).half().float() for shape in shapes)
    return [summed(a, b, torch.float32, step) for step in orders]


def summed(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, step: int | None) -> torch.Tensor:
    total, k = torch.zeros(len(a), a.shape[1], b.shape[2], device=a.device), a.shape[2]
    for start in range(0, k, step or k):
        part = slice(start, start + (step or k))
        total = (total + torch.bmm(a[:, :, part], b[:, part])).to(kind).float()
    return total.half()


def last_digit_cut(results: torch.Tensor) -> torch.Tensor:
    return (results.view(torch.int16) & -2).view(torch.float16)


def honest_pairs(rng: torch.Generator, most: int) -> int:
    """Calls judged; of random sizes, depths and orders."""
    draw, judged = random.Random(1), 0
    while judged < most:
        problem = Problem(
            draw.choice([8, 16, 32, 96]), draw.choice([8, 16, 64]), draw.choice([8, 256, 1024, 4096, 16384])
        )
        calls = max(2, min(1000, 30_000_000 // (problem.m * problem.n * problem.k)))
        one, other = products(rng, calls, problem, *draw.sample(ORDERS, 2))
        assert verify.check_timed(one, other, problem, 1) is None
        judged += calls
    return judged


def test_honest_sums_pass_whatever_their_order(rng) -> None:
    assert honest_pairs(rng, 500) >= 500


@pytest.mark.slow
def test_a_hundred_thousand_honest_sums_pass_whatever_their_order(rng) -> None:
    assert honest_pairs(rng, 100_000) >= 100_000


@pytest.mark.parametrize("k", [64, 512, 2048, 8192])
def test_fixed_point_of_sixteen_bits_is_no_sum_of_a_processor(rng, k: int) -> None:
    """Scaled so that it hardly ever overflows; whoever multiplies words has exact products and sums."""
    problem = Problem(64, 64, k)
    shapes = (12, problem.m, k), (12, k, problem.n)
    a, b = (torch.randn(shape, generator=rng, device=rng.device).half().double() for shape in shapes)
    words = [(matrix * 6000).round().clamp(-32767, 32767) for matrix in (a, b)]
    fixed, exact = ((torch.bmm(*pair) / unit).half() for pair, unit in ((words, 6000.0**2), ((a, b), 1.0)))
    assert verify.check_timed(exact, exact, problem, 1) is None
    found = verify.check_timed(fixed, exact, problem, 1)
    assert found and found[0] in (Status.IMPRECISE, Status.WRONG)


@pytest.mark.parametrize("k", [2048, 20480])
def test_nor_is_one_whose_unit_is_a_step_of_most_numbers(rng, k: int) -> None:
    """Of those from 1/8 to 4 nothing is lost then; larger ones are multiplied apart."""
    a, b = (torch.randn(2, 128, k, generator=rng, device=rng.device).half().double() for _ in range(2))
    near = [torch.where(matrix.abs() < 4, (matrix * 8192).round() / 8192, matrix) for matrix in (a, b)]
    fixed, exact = (torch.bmm(one, other.mT).half() for one, other in (near, (a, b)))
    found = verify.check_timed(fixed, exact, Problem(128, 128, k), 1)
    assert found and found[0] is Status.IMPRECISE


@pytest.mark.parametrize("k", [64, 2048, 65536])
def test_one_product_after_the_other_is_a_sum_of_a_processor(rng, k: int) -> None:
    """The order that strays farthest, beside another."""
    problem = Problem(32, 48, k)
    a, b = (torch.randn(shape, generator=rng, device=rng.device).half().float() for shape in ((32, k), (k, 48)))
    one, other = (torch.zeros(32, 48, device=rng.device) for _ in range(2))
    for place in range(k):
        one.addcmul_(a[:, place, None], b[None, place])
        other.addcmul_(a[:, k - 1 - place, None], b[None, k - 1 - place])
    assert verify.check_timed(one.half()[None], other.half()[None], problem, 1) is None


@pytest.mark.parametrize("chunk", [1, 16])
@pytest.mark.parametrize("size", [8, 32])
def test_sums_in_fp16_may_disagree_more_in_each_call_too(rng, chunk: int, size: int) -> None:
    problem = Problem(size, size, 256, accumulate="f16")
    shapes = (100, size, problem.k), (100, problem.k, size)
    a, b = (torch.randn(shape, generator=rng, device=rng.device).half().float() for shape in shapes)
    one, other = summed(a, b, torch.float16, chunk), summed(a, b, torch.float32, None)
    assert verify.check_timed(one, other, problem, chunk) is None
    assert verify.check_timed(one, other, Problem(size, size, 256), chunk) is not None


@pytest.mark.parametrize("shape", [(32, 32, 64), (32, 32, 4096), (64, 128, 512), (8, 256, 1024)], ids=str)
@pytest.mark.parametrize("calls", [16, 24, 100])
def test_one_coarse_call_among_exact_ones_is_found(rng, shape, calls: int) -> None:
    """The last digit cut off in one call: all together they stay far below what is allowed of tensor cores."""
    problem = Problem(*shape)
    one, other = products(rng, calls, problem, *ORDERS[2:])
    assert verify.check_timed(one, other, problem, 16) is None
    one[calls // 3] = last_digit_cut(one[calls // 3])
    found = verify.check_timed(one, other, problem, 16)
    assert found and found[0] is Status.IMPRECISE and "one alone" in found[1]


def test_small_calls_are_coarse_together_if_not_alone(rng) -> None:
    problem = Problem(8, 8, 256)
    one, other = products(rng, 50, problem, *ORDERS[2:])
    assert verify.check_timed(last_digit_cut(one), other, problem, 1)[0] is Status.IMPRECISE


def test_what_a_call_may_have_is_a_quantile_of_a_poisson_count() -> None:
    """The bound lies beyond the true quantile, and not by much."""
    for count in (64, 256, 1024, 65536):
        mean = count * limits.TIMED_LIMIT**2 / 12
        bound = limits.disagreements(count, limits.TIMED_LIMIT, True)
        tail = torch.special.gammainc(torch.tensor(math.ceil(bound)).double(), torch.tensor(mean).double())
        assert 1e-16 < float(tail) < 1e-12  # P(Poisson(mean) ≥ bound)


def test_how_it_is_blocked_changes_nothing(rng, monkeypatch) -> None:
    problem = Problem(32, 32, 2048)
    one, other = products(rng, 12, problem, 8, None)
    one[4] = last_digit_cut(one[4])
    whole = verify.check_timed(one, other, problem, 1)
    for block in (4, 64, 1000):
        monkeypatch.setattr(verify, "BLOCK", block)
        assert verify.check_timed(one, other, problem, 1) == whole
