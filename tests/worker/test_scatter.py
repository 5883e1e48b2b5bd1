"""Honest results stay within what the inputs tell, however few their elements or rows; coarser ones do not."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, scatter, verify

Given = Sequence[torch.Tensor]
Sum = Callable[[Given], torch.Tensor]


def products(given: Given) -> torch.Tensor:
    """[K, M, N] of a tn problem, exact."""
    a, b = (tensor.float() for tensor in given[:2])
    return a.T[:, :, None] * b.T[:, None, :]


def summed(terms: torch.Tensor, kind: torch.dtype = torch.float16) -> torch.Tensor:
    """One after the other, rounded after each."""
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = (total + term).to(kind).float()
    return total


def in_turn(given: Given) -> torch.Tensor:
    return summed(products(given))


def backwards(given: Given) -> torch.Tensor:
    return summed(products(given).flip(0))


def in_lanes(given: Given) -> torch.Tensor:
    """Four accumulators, added up."""
    return summed(torch.stack([summed(products(given)[lane::4]) for lane in range(4)]))


def pairwise(given: Given) -> torch.Tensor:
    terms = products(given)
    while len(terms) > 1:
        terms = (terms[::2] + terms[1::2]).half().float()
    return terms[0]


def in_blocks(size: int, digits: int = 0) -> Sum:
    """As a tensor core adds them: a block and the sum so far at once, exact or cut to `digits` of the largest, then
    rounded."""

    def kernel(given: Given) -> torch.Tensor:
        total = torch.zeros(len(given[0]), len(given[1]))
        for block in products(given).split(size):
            terms = torch.cat([total[None], block])
            if digits:
                shift = digits - torch.frexp(terms.abs().amax(0)).exponent
                terms = torch.ldexp(torch.ldexp(terms, shift).trunc(), -shift)
            total = terms.double().sum(0).half().float()
        return total

    return kernel


def finished(total: torch.Tensor, given: Given, problem: Problem) -> torch.Tensor:
    """With every step rounded to fp16."""
    for tensor in given[2:]:
        total = (total + tensor.float()).half().float()
    return torch.nn.functional.gelu(total, approximate="tanh").half() if "gelu" in problem.epilogue else total.half()


def found(problem: Problem, kernel: Callable[[Given], torch.Tensor], chunk: int = 1) -> verify.Finding | None:
    given = inputs.uneven_normal(inputs.generator(), problem)
    exact = verify.reference(given, problem)
    most = scatter.most_squares(given, exact, problem, chunk)
    return verify.check_normal(kernel(given), exact, problem, chunk, most)[0]


@pytest.mark.parametrize("epilogue", ["none", "bias", "bias_gelu"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 64), (32, 8, 8)], ids=str)
@pytest.mark.parametrize(
    ("kernel", "chunk"),
    [
        (in_turn, 1),
        (backwards, 1),
        (in_lanes, 1),
        (pairwise, 1),
        (in_blocks(8), 8),
        (in_blocks(16), 16),
        (in_blocks(8, 24), 8),
        (in_blocks(16, 24), 16),
    ],
    ids=["in turn", "backwards", "lanes", "pairwise", "8", "16", "8 cut", "16 cut"],
)
def test_honest_fp16_sums_pass_however_often(epilogue: str, shape, kernel: Sum, chunk: int) -> None:
    problem = Problem(*shape, accumulate="f16", epilogue=epilogue)
    for _ in range(40):
        assert found(problem, lambda given: finished(kernel(given), given, problem), chunk) is None


@pytest.mark.parametrize("shape", [(1, 4096, 8), (4096, 8, 8)], ids=str)
def test_one_row_of_a_few_products_makes_all_elements_wrong_together(shape) -> None:
    problem = Problem(*shape, accumulate="f16")
    for _ in range(60):
        assert found(problem, lambda given: in_turn(given).half()) is None


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 64), (64, 64, 8)], ids=str)
def test_what_finishing_may_lose_is_not_held_against_a_few_elements(dtype: str, shape) -> None:
    """The hardware's tanh is off by up to 2^-11 of itself."""
    problem = Problem(*shape, dtype=dtype, epilogue="bias_gelu")

    def kernel(given: Given) -> torch.Tensor:
        x = given[0].float() @ given[1].float().T + given[2].float()
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        tanh = torch.tanh(inner) * (1 + 2.0**-11 * (2 * torch.rand(x.shape) - 1) * (inner.abs() < 5))
        return (x / 2 * (1 + tanh)).to(inputs.element(problem))

    for _ in range(40):
        assert found(problem, kernel) is None


@pytest.mark.parametrize("kernel", [in_turn, in_blocks(16)], ids=["1", "16"])
@pytest.mark.parametrize("shape", [(1, 8, 32), (4, 8, 32), (1, 256, 32)], ids=str)
def test_a_bound_is_passed_no_oftener_than_it_says(monkeypatch, shape, kernel: Sum) -> None:
    """One in fifty, so that some hundred tries tell. At most a third of that was seen, which fails here by chance in
    one of a million runs."""
    monkeypatch.setattr(scatter, "SELDOM", math.log(50))
    problem, chunk = Problem(*shape, accumulate="f16"), 1 if kernel is in_turn else 16
    judged = [found(problem, lambda given: kernel(given).half(), chunk) is not None for _ in range(1000)]
    assert sum(judged) <= 20


@pytest.mark.parametrize("chunk", [1, 16])
def test_many_elements_are_allowed_what_they_were(chunk: int) -> None:
    problem = Problem(192, 256, 512, accumulate="f16")
    given = inputs.uneven_normal(inputs.generator(), problem)
    exact = verify.reference(given, problem)
    errors = float((in_blocks(chunk)(given) - exact).square().sum())
    assert scatter.most_squares(given, exact, problem, chunk) == pytest.approx(1.15**2 * errors, rel=0.05)


@pytest.mark.parametrize("shape", [(1, 8, 64), (3, 8, 64), (32, 40, 64), (1, 512, 8)], ids=str)
@pytest.mark.parametrize("epilogue", ["none", "bias"])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda given: summed(products(given), torch.bfloat16),
        lambda given: summed(products([tensor.to(torch.float8_e4m3fn) for tensor in given[:2]])),
        lambda given: summed(products(given)[:-2]),
        lambda given: torch.zeros(len(given[0]), len(given[1])),
    ],
    ids=["sums in bf16", "eight bits", "a short K", "nothing"],
)
def test_what_is_coarser_is_found_in_few_elements_too(shape, epilogue: str, kernel: Sum) -> None:
    """Eight sums in bf16 are within the bound once in four: twelve times in a row in one of ten million."""
    problem = Problem(*shape, accumulate="f16", epilogue=epilogue)
    tries = [found(problem, lambda given: finished(kernel(given), given, problem)) for _ in range(12)]
    assert any(one and one[0] in (Status.WRONG, Status.IMPRECISE) for one in tries)


def test_nothing_is_computed_where_a_limit_says_enough() -> None:
    for problem in (Problem(8, 8, 8), Problem(8, 8, 8, dtype="bf16", epilogue="bias")):
        assert operators.find(problem.epilogue).loss == 0
        given = inputs.uneven_normal(inputs.generator(), problem)
        assert scatter.most_squares(given, verify.reference(given, problem), problem, 1) is None
