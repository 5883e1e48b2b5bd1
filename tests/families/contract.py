"""What sources of every family meet, whatever they are for."""

import random

import msgspec

from cudal2 import corpus
from cudal2.completion import check_source, extract
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout
from cudal2.target import Target, targets

ON_GPUS = sorted(
    {family.name for target in targets().values() if target.kind == "cuda" for family in corpus.families(target)}
)
"""The families of every GPU, by name."""


def some_settings(family: Family, layout: Layout, count: int, seed: int, **fixed: int | str) -> list[Knobs]:
    """Random settings that render, knobs in `fixed` as said."""
    rng = random.Random(f"{family.name} {layout} {seed}")
    found: list[Knobs] = []
    while len(found) < count:
        knobs = {knob: rng.choice(values) for knob, values in family.knobs.items()} | fixed
        if not corpus.refusal(family, knobs, layout):
            found.append(knobs)
    return found


def check_sources(family: Family, layout: Layout, target: Target, lines: int, width: int) -> None:
    """Within the contract, of at most so many lines of that width, comments as the style has them."""
    for knobs in some_settings(family, layout, 40, seed=0):
        source = corpus.render(family, knobs, layout)
        check_source(source, target)
        assert extract(source, target) == source
        assert len(source.splitlines()) <= lines
        assert max(map(len, source.splitlines())) <= width
        assert "{{" not in source and "{%" not in source and "///" not in source
        assert ("//" in source) == (knobs["style"] != "terse")
    _check_forms(family, layout, target, lines + 30, width + 45)


def _check_forms(family: Family, layout: Layout, target: Target, lines: int, width: int) -> None:
    """The same with other types and operators; each form of problem has a source of its own, whatever the sizes."""
    like = [problem for problem in corpus.forms(family) if problem.layout == layout]
    knobs = corpus.allowed(family, like[-1], "f32", random.Random(f"forms {family.name} {layout}"))
    assert knobs is not None
    sources = {problem: corpus.render(family, knobs, problem) for problem in like}
    for problem, source in sources.items():
        check_source(source, target)
        assert len(source.splitlines()) <= lines and max(map(len, source.splitlines())) <= width
        assert "{{" not in source and "{%" not in source and "///" not in source and "None" not in source
        assert target.contract.element(problem) in source
        assert ("bias" in source) == (problem.epilogue != "none")
        larger = msgspec.structs.replace(problem, m=problem.m + 24, n=4096, k=8192)
        assert corpus.render(family, knobs, larger) == source
        assert corpus.keeps_its_plan(corpus.plan(corpus.Sample(family.name, layout, knobs, source)) + source, target)
    distinct = {(problem.dtype, problem.epilogue): source for problem, source in sources.items()}
    assert len(set(distinct.values())) == len(distinct) == len(family.dtypes) * len(family.epilogues)


def check_knobs(family: Family, layout: Layout, count: int) -> None:
    """No two of `count` settings write the same source, and every knob shows."""
    settings = {tuple(knobs.items()): knobs for knobs in some_settings(family, layout, count, seed=1)}
    assert len({corpus.render(family, knobs, layout) for knobs in settings.values()}) == len(settings)
    for knobs in list(settings.values())[:3]:
        for knob, values in family.knobs.items():
            neighbours = [{**knobs, knob: value} for value in values]
            allowed = [other for other in neighbours if not corpus.refusal(family, other, layout)]
            assert len({corpus.render(family, other, layout) for other in allowed}) == len(allowed), knob
