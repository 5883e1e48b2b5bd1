"""In every type and behind every operator: what is as exact as can be passes, and each way to be coarser is found."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, outcome, verify
from cudal2.worker.outcome import CandidateFailed

Given = Sequence[torch.Tensor]
KINDS = [("fp16", "none"), ("fp16", "bias"), ("fp16", "bias_gelu"), ("bf16", "none"), ("bf16", "bias")]
KINDS += [("bf16", "bias_gelu")]
BF16 = [kind for kind in KINDS if kind[0] == "bf16"]


def kinds(chosen) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("dtype", "epilogue"), chosen, ids=["-".join(kind) for kind in chosen])


def finished(product: torch.Tensor, given: Given, problem: Problem) -> torch.Tensor:
    return operators.find(problem.epilogue).finish(product, [tensor.to(product.dtype) for tensor in given[2:]])


def fused(given: Given, problem: Problem, step: int = 32) -> torch.Tensor:
    """As a kernel does it, before it rounds: a running sum in fp32, finished in fp32. Layout tn."""
    a, b = (tensor.float() for tensor in given[:2])
    total = torch.zeros(len(a), len(b))
    for start in range(0, problem.k, step):
        total = total + a[:, start : start + step] @ b[:, start : start + step].T
    return finished(total, given, problem)


def rounded(values: torch.Tensor, problem: Problem) -> torch.Tensor:
    return values.to(inputs.element(problem))


def truncated(values: torch.Tensor, problem: Problem) -> torch.Tensor:
    """The digits that do not fit are cut off."""
    nearest = rounded(values, problem)
    bits = nearest.view(torch.int16)
    return (bits - (nearest.float().abs() > values.abs()).short()).view(nearest.dtype)


def eight_bits(tensor: torch.Tensor) -> torch.Tensor:
    """With four digits, as fp8 (e4m3) has, and all exponents."""
    mantissa, exponent = torch.frexp(tensor.float())
    return torch.ldexp((mantissa * 16).round() / 16, exponent).to(tensor.dtype)


def summed_in_type(given: Given, problem: Problem) -> torch.Tensor:
    total = rounded(torch.zeros(len(given[0]), len(given[1])), problem)
    for start in range(0, problem.k, 8):
        part = given[0][:, start : start + 8].float() @ given[1][:, start : start + 8].float().T
        total = rounded(total.float() + part, problem)
    return rounded(finished(total.float(), given, problem), problem)


def by_way_of_fp16(given: Given, problem: Problem) -> torch.Tensor:
    return rounded(fused(given, problem).half(), problem)


def in_fp16(given: Given, problem: Problem) -> torch.Tensor:
    """Whose operands are converted to fp16."""
    return rounded(fused([tensor.half() for tensor in given], problem), problem)


def short(given: Given, problem: Problem) -> torch.Tensor:
    """The last eight of K left out."""
    return rounded(fused([given[0][:, :-8], given[1][:, :-8], *given[2:]], problem), problem)


def sparse_in_negative(given: Given, problem: Problem) -> torch.Tensor:
    """Where half of the sum is below zero, the other half is not added: an activation might hide it."""
    half = problem.k // 2
    first = given[0][:, :half].float() @ given[1][:, :half].float().T
    return rounded(finished(torch.where(first < 0, first, 0), given, problem), problem).where(
        first < 0, rounded(fused(given, problem), problem)
    )


def status(problem: Problem, kernel: Callable[[Given, Problem], torch.Tensor]) -> Status:
    try:
        return outcome.check(lambda given: kernel(given, problem), problem, inputs.generator(), 1).status
    except CandidateFailed as failed:
        return failed.status


@kinds(KINDS)
@pytest.mark.parametrize("k", [8, 64, 1024, 16384])
def test_fp32_sums_have_a_rho_of_one_at_any_k(dtype: str, epilogue: str, k: int) -> None:
    problem = Problem(48, 64, k, dtype=dtype, epilogue=epilogue)
    found = outcome.check(lambda given: rounded(fused(given, problem), problem), problem, inputs.generator(), 1)
    assert found.rho is not None and 0.99 < found.rho < 1.01


@kinds(KINDS)
@pytest.mark.parametrize("m", [1, 2, 3, 7])
def test_few_elements_pass_however_often_they_are_judged(dtype: str, epilogue: str, m: int) -> None:
    for _ in range(20):
        problem = Problem(m, 8, 64, dtype=dtype, epilogue=epilogue)
        assert status(problem, lambda given, problem: rounded(fused(given, problem), problem)) is Status.OK


@pytest.mark.parametrize("epilogue", ["none", "bias", "bias_gelu"])
@pytest.mark.parametrize("k", [8, 64, 512])
def test_fp16_sums_pass_where_they_are_asked_for_even_a_few(epilogue: str, k: int) -> None:
    def halves(given: Given, problem: Problem) -> torch.Tensor:
        total = torch.zeros(len(given[0]), len(given[1]), dtype=torch.float16)
        for place in range(problem.k):
            total = (total.float() + given[0][:, place, None].float() * given[1][:, place].float()).half()
        for tensor in given[2:]:
            total = (total.float() + tensor.float()).half()
        if epilogue == "bias_gelu":
            return torch.nn.functional.gelu(total.float(), approximate="tanh").half()
        return total

    for m in (1, 3, 64):
        assert status(Problem(m, 8, k, accumulate="f16", epilogue=epilogue), halves) is Status.OK


@kinds(KINDS)
@pytest.mark.parametrize("k", [64, 4096])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda given, problem: truncated(fused(given, problem), problem),
        lambda given, problem: rounded(fused([eight_bits(tensor) for tensor in given], problem), problem),
        summed_in_type,
        short,
        sparse_in_negative,
        lambda given, problem: (
            rounded(fused([*given[:2], *(0 * tensor for tensor in given[2:])], problem) + 0, problem)
            if len(given) > 2
            else torch.zeros(problem.m, problem.n, dtype=given[0].dtype)
        ),
    ],
    ids=["truncates", "eight bits", "sums in its type", "a short K", "leaves out what is flat", "no bias"],
)
def test_what_is_coarser_is_found(dtype: str, epilogue: str, k: int, kernel) -> None:
    problem = Problem(32, 40, k, dtype=dtype, epilogue=epilogue)
    assert status(problem, kernel) in (Status.WRONG, Status.IMPRECISE)
    given = inputs.uneven_normal(inputs.generator(), problem)
    right, found = rounded(fused(given, problem), problem), kernel(given, problem)
    assert verify.check_timed(found[None], right[None], problem, 1) is not None


@kinds(BF16)
@pytest.mark.parametrize("kernel", [by_way_of_fp16, in_fp16])
def test_fp16_is_no_bf16(dtype: str, epilogue: str, kernel) -> None:
    assert status(Problem(32, 40, 256, dtype=dtype, epilogue=epilogue), kernel) is Status.WRONG


@kinds(KINDS)
@pytest.mark.parametrize("k", [64, 4096])
def test_timed_results_of_two_orders_of_summation_are_alike(dtype: str, epilogue: str, k: int) -> None:
    problem = Problem(32, 40, k, dtype=dtype, epilogue=epilogue)
    given = inputs.uneven_normal(inputs.generator(), problem)
    one, other = (rounded(fused(given, problem, step), problem) for step in (8, k))
    assert verify.check_timed(one[None], other[None], problem, 1) is None


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_hardware_s_tanh_will_do(dtype: str) -> None:
    """It is off by up to 2^-11 of itself."""

    def kernel(given: Given, problem: Problem) -> torch.Tensor:
        x = finished(fused(given[:2], plain(problem)), given, bias(problem))
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        tanh = torch.tanh(inner) * (1 + 2.0**-11 * (2 * torch.rand(x.shape) - 1) * (inner.abs() < 5))
        return rounded(x / 2 * (1 + tanh), problem)

    for k in (64, 1024):
        problem = Problem(64, 64, k, dtype=dtype, epilogue="bias_gelu")
        assert status(problem, kernel) is Status.OK
        given = inputs.uneven_normal(inputs.generator(), problem)
        right = rounded(fused(given, problem), problem)
        assert verify.check_timed(kernel(given, problem)[None], right[None], problem, 1) is None


def plain(problem: Problem) -> Problem:
    return Problem(problem.m, problem.n, problem.k, dtype=problem.dtype)


def bias(problem: Problem) -> Problem:
    return Problem(problem.m, problem.n, problem.k, dtype=problem.dtype, epilogue="bias")


@kinds(KINDS)
def test_inputs_fill_what_the_operator_asks_for(dtype: str, epilogue: str) -> None:
    problem = Problem(3, 16, 4096, dtype=dtype, epilogue=epilogue)
    wanted = [operand.shape for operand in operators.inputs(problem)]
    for make in (inputs.normal, inputs.uneven_normal, inputs.exact_integers, inputs.wide_integers):
        given = make(inputs.generator(), problem)
        assert [tuple(tensor.shape) for tensor in given] == wanted
        assert all(tensor.dtype is inputs.element(problem) and tensor.isfinite().all() for tensor in given)
    for tensor in inputs.uneven_normal(inputs.generator(), problem)[2:]:
        assert 4 < float(tensor.float().square().mean().sqrt()) < 150, "of the product's size, 64"


def test_uneven_bf16_is_no_fp16() -> None:
    a, b = inputs.uneven_normal(inputs.generator(), Problem(64, 64, 512, dtype="bf16"))
    for tensor in (a, b):
        assert tensor.half().isinf().any() and (tensor.half() == 0).any()
