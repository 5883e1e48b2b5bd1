"""Shapes by name, and a fair sample of the grid."""

import random
from collections import Counter

import msgspec
import pytest

from cudal2 import operators
from cudal2.dtype import DTYPES
from cudal2.problem import Problem, grid, parse, sample, stratified


def decade(problem) -> int:
    return len(str(problem.flop))


@pytest.mark.parametrize("count", [30, 100, 300])
def test_a_sample_has_of_every_decade_its_share(count: int) -> None:
    shapes = sample(count, seed=1)
    assert len(set(shapes)) == len(shapes)
    assert abs(len(shapes) - count) <= 20  # every decade has two at least
    all_, some = Counter(map(decade, grid())), Counter(map(decade, shapes))
    for each, total in all_.items():
        assert some[each] >= min(2, total)
        assert abs(some[each] - count * total / 1000) <= 2


def test_a_sample_is_its_seeds() -> None:
    assert sample(100, 7) == sample(100, 7) != sample(100, 8)
    assert [p.mnk for p in sample(100, 7, "nn", "f16")] == [p.mnk for p in sample(100, 7)]


def test_every_beginning_of_a_stratified_order_has_of_every_decade_its_share() -> None:
    order = stratified(grid())
    assert sorted(order) == sorted(grid())
    all_, some = Counter(problem.decade for problem in grid()), Counter[int]()
    for done, problem in enumerate(order, 1):
        some[problem.decade] += 1
        assert all(abs(some[each] - done * total / 1000) <= 2 for each, total in all_.items())


def test_a_stratified_order_does_not_depend_on_the_one_given() -> None:
    some = sample(60, 3)
    assert stratified(some) == stratified(some[::-1] + some[:5]) != stratified(some, seed=1)
    assert stratified([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_name_says_the_whole_problem(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([*DTYPES.values()])
    sizes = rng.randint(1, 1 << 17), 8 * rng.randint(1, 1 << 14), 8 * rng.randint(1, 1 << 14)
    how = rng.choice(["nn", "tn"]), rng.choice(dtype.accumulators), dtype.name, rng.choice(operators.names())
    problem = Problem(*sizes, *how)
    assert parse(problem.name) == problem == parse(problem.name, "nn", "f16", "bf16", "bias")
    assert parse(problem.mnk, *how) == problem
    assert len({problem.name, *(f"{problem.name}{more}" for more in ("_bf16", "_fp16_bias"))}) == 3


@pytest.mark.parametrize("mnk", ["256_384_512", "8_8_8"])
@pytest.mark.parametrize("layout", ["nn", "tn"])
@pytest.mark.parametrize("accumulate", ["f32", "f16"])
def test_the_names_of_before_are_those_of_fp16_alone(mnk: str, layout, accumulate) -> None:
    name = f"{mnk}_{layout}_{accumulate}"
    problem = parse(name)
    assert problem.name == name and (problem.dtype, problem.epilogue) == ("fp16", "none")
    read = msgspec.json.decode(f'{{"m":8,"n":8,"k":8,"layout":"{layout}","accumulate":"{accumulate}"}}', type=Problem)
    assert read == parse("8_8_8", layout, accumulate)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1_2",
        "64_64_63",
        "64_64_64_tn",
        "64_64_64_tt_f32",
        "0_64_64",
        "64x64x64",
        "8_8_8_tn_f32_",
        "8_8_8_tn_f32_fp8",
        "8_8_8_tn_f16_bf16",
        "8_8_8_tn_f32_bf16_a-b",
        "8_8_8_tn_f32_bias",
    ],
)
def test_what_is_no_problem_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
