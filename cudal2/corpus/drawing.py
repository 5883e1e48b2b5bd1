"""Random sources of the kernel families, and random problems."""

import random
from collections.abc import Sequence
from functools import cache

import msgspec

from cudal2 import split
from cudal2.corpus.family import STYLES, Family, Knobs, families, form, lacks, refusal, render
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.target import Target

SIZES = tuple(sorted({*(2**p for p in range(6, 12)), *range(64, 512, 8), *range(512, 2049, 64)}))
"""The sizes M, N and K are drawn from: 64 to 2048, powers of two and others."""

TRIES = 5_000
"""After so many random settings that its rules refuse a family counts as one that has nothing to draw. The strictest
rules that ship let about one in a hundred pass."""


class Sample(msgspec.Struct, frozen=True):
    """One source of the corpus and the setting it came from."""

    family: str
    layout: Layout
    knobs: Knobs
    source: str


def draw(
    target: Target,
    asked: Problem | Layout,
    rng: random.Random,
    accumulate: Accumulate = "f32",
    styles: Sequence[str] = STYLES,
) -> Sample:
    """A random source: the family is drawn by weight, then a setting uniformly from those that its rules allow.

    For `accumulate` "f32" only kernels that sum in f32 are drawn, for "f16" also kernels that sum in f16; a problem
    says it itself. Raises ValueError where the target has no family with such a kernel, or rules refuse TRIES random
    settings.
    """
    problem = form(asked)
    accumulate = problem.accumulate if isinstance(asked, Problem) else accumulate
    open_ = [family for family in families(target) if _can_be_drawn(target, family.name, problem, accumulate)]
    if not open_:
        raise ValueError(
            f"no family in data/families has a {problem.layout} kernel for {target.name} in {problem.dtype} with the "
            f"epilogue {problem.epilogue} that sums in {accumulate}: rules refused each of {TRIES} random settings"
        )
    family = rng.choice([family for family in open_ for _ in range(family.weight)])
    knobs = allowed(family, problem, accumulate, rng, styles)
    if knobs is None:
        raise ValueError(f"family {family.name}: its rules refused {TRIES} random settings for {target.name}")
    return Sample(family.name, problem.layout, knobs, render(family, knobs, problem))


def allowed(
    family: Family,
    asked: Problem | Layout,
    accumulate: Accumulate,
    rng: random.Random,
    styles: Sequence[str] = STYLES,
) -> Knobs | None:
    """A random setting that renders and serves such problems; None where TRIES random settings hold none."""
    problem = form(asked)
    if lacks(family, problem):
        return None
    for _ in range(TRIES):
        knobs = {knob: rng.choice(values) for knob, values in family.knobs.items()}
        if accumulate == "f32" and knobs.get("accumulate") == "f16":
            continue
        if "style" in knobs and knobs["style"] not in styles:
            continue
        if not refusal(family, knobs, problem):
            return knobs
    return None


@cache
def _can_be_drawn(target: Target, name: str, problem: Problem, accumulate: Accumulate) -> bool:
    """Whether a family has anything to draw. Uses its own random numbers, so that `rng` of `draw` is not advanced."""
    family = next(family for family in families(target) if family.name == name)
    return allowed(family, problem, accumulate, random.Random(name)) is not None


def draw_problem(rng: random.Random, layout: Layout, held_out: bool = False) -> Problem:
    """A random f32 problem, small sizes likelier than large: a held-out one, or one that is not."""
    weights = [1 / size for size in SIZES]
    while True:
        powers = rng.random() < 0.5
        m, n, k = (2 ** rng.choice(range(6, 12)) if powers else rng.choices(SIZES, weights)[0] for _ in range(3))
        problem = Problem(m, n, k, layout)
        if split.held_out(problem) == held_out:
            return problem
