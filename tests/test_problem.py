"""Shapes by name, and a fair sample of the grid."""

from collections import Counter

import pytest

from cudal2.problem import grid, parse, sample, stratified


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


@pytest.mark.parametrize("text", ["", "1_2", "64_64_63", "64_64_64_tn", "64_64_64_tt_f32", "0_64_64", "64x64x64"])
def test_what_is_no_problem_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
