"""A processor's families on any number of rows, in every type and with every epilogue."""

import random
from pathlib import Path

import pytest
from families import processor
from families.contract import some_settings
from thorough import count

from cudal2 import corpus
from cudal2.completion import check_source
from cudal2.corpus import Family
from cudal2.problem import Layout, Problem
from cudal2.target import CPU

CASES = [(family, layout) for family in corpus.families(CPU) for layout in family.layouts]
each_family = pytest.mark.parametrize(("family", "layout"), CASES, ids=[f"{f.name}-{layout}" for f, layout in CASES])
SETTINGS = count(200, 8)
"""How many of each family the slow test draws; 200 take an hour and a half."""
ROWS = (1, 2, 3, 7, 17, 100)


def some_problem(rng: random.Random, family: Family, layout: Layout) -> Problem:
    n, k = (8 * rng.randint(1, 18) for _ in "nk")
    return Problem(rng.choice(ROWS), n, k, layout, "f32", rng.choice(family.dtypes), rng.choice(family.epilogues))


def is_right(family: Family, layout: Layout, folder: Path, count: int, seed: int) -> None:
    """`count` settings, each on its problem and on its like with other rows."""
    rng = random.Random(f"{family.name} {layout} {seed}")
    for number, knobs in enumerate(some_settings(family, layout, count, seed)):
        problem = some_problem(rng, family, layout)
        source = corpus.render(family, knobs, problem)
        check_source(source, CPU)
        library = processor.build(source, folder)
        for m in (problem.m, *rng.sample(range(1, 40), 2)):
            asked = Problem(m, problem.n, problem.k, layout, "f32", problem.dtype, problem.epilogue)
            if corpus.render(family, knobs, asked) == source:
                assert processor.wrong(library, asked, number) == "", (asked.name, knobs)


@pytest.mark.sampled(3)
@each_family
def test_any_rows_types_and_epilogues(family: Family, layout: Layout, tmp_path: Path) -> None:
    is_right(family, layout, tmp_path, count=2, seed=0)


@pytest.mark.sampled(3)
@each_family
def test_what_is_not_a_number_stays_none(family: Family, layout: Layout, tmp_path: Path) -> None:
    """A NaN of A spreads over its row of C; rounding by adding to the bits would make a number of some."""
    problem = Problem(3, 16, 24, layout, "f32", "bf16")
    (knobs,) = some_settings(family, layout, 1, seed=6)
    library = processor.build(corpus.render(family, knobs, problem), tmp_path)
    for pattern in (0x7FC0, 0x7F81, 0x7FFF, 0xFFFF):
        rows = processor.rows_of_nan(library, problem, pattern)
        assert rows == [False, True, False], (hex(pattern), knobs)


@pytest.mark.slow
@each_family
def test_many_settings_of_any_rows_types_and_epilogues(family: Family, layout: Layout, tmp_path: Path) -> None:
    is_right(family, layout, tmp_path, count=SETTINGS, seed=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3"])
def test_bf16_on_processors_with_less(march: str, tmp_path: Path) -> None:
    if march == "x86-64-v3" and not {"avx2", "f16c", "fma"} <= set(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip("this processor has no AVX2")
    for family, layout in CASES[::3]:
        problem = Problem(7, 40, 136, layout, "f32", "bf16", "bias_gelu")
        (knobs,) = some_settings(family, layout, 1, seed=2)
        library = processor.build(corpus.render(family, knobs, problem), tmp_path, march)
        assert processor.wrong(library, problem) == "", knobs


def test_a_harness_that_can_fail(tmp_path: Path) -> None:
    """Truncation instead of rounding, and rows beyond C, are found out."""
    family = next(family for family in corpus.families(CPU) if family.name == "dot")
    problem = Problem(7, 16, 64, "tn", "f32", "bf16")
    (knobs,) = some_settings(family, "tn", 1, seed=0, mr=4, style="plain")
    source = corpus.render(family, knobs, problem)
    truncated = source.replace("bits + 0x7FFF + (bits >> 16 & 1)", "bits")
    assert truncated != source
    assert "wrong" in processor.wrong(processor.build(truncated, tmp_path), problem)
    assert "outside" in processor.wrong(processor.build(source.replace("min(MR, rows)", "MR"), tmp_path), problem)


def test_fp16_without_epilogue_does_not_show_the_other_types() -> None:
    for family, layout in CASES:
        (knobs,) = some_settings(family, layout, 1, seed=3)
        assert corpus.render(family, knobs, layout) == corpus.render(family, knobs, Problem(256, 8, 8, layout))
        assert "bias" not in corpus.render(family, knobs, layout)
