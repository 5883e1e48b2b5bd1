"""Random sources of the kernel families, with the plan of each, and random problems.

A plan is comments at the beginning of a source that state its family and knobs.
"""

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

import msgspec

from cudal2 import split
from cudal2.corpus.family import STYLES, Family, Knobs, families, form, forms, lacks, refusal, render
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.target import Target

SIZES = tuple(sorted({*(2**p for p in range(6, 12)), *range(64, 512, 8), *range(512, 2049, 64)}))
"""The sizes M, N and K are drawn from: 64 to 2048, powers of two and others."""

TRIES = 5_000
"""After so many random settings that its rules refuse a family counts as one that has nothing to draw. The strictest
rules that ship let about one in a hundred pass."""
PLAN = "// family: "
"""The beginning of a source that states its plan."""
_PLAN_LINE = re.compile(r"// [a-z]\w*: .*")


Without = Mapping[str, Knobs]
"""Compositions that are kept out of a corpus: by family the values of some knobs."""


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
    without: Without = MappingProxyType({}),
) -> Sample:
    """A random source: the family is drawn by weight, then a setting uniformly from those that its rules allow and that
    are not kept out.

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
    knobs = allowed(family, problem, accumulate, rng, styles, without)
    if knobs is None:
        raise ValueError(f"family {family.name}: its rules refused {TRIES} random settings for {target.name}")
    return Sample(family.name, problem.layout, knobs, render(family, knobs, problem))


def allowed(
    family: Family,
    asked: Problem | Layout,
    accumulate: Accumulate,
    rng: random.Random,
    styles: Sequence[str] = STYLES,
    without: Without = MappingProxyType({}),
) -> Knobs | None:
    """A random setting that renders and serves such problems; None where TRIES random settings hold none."""
    problem = form(asked)
    if lacks(family, problem):
        return None
    space = dict(family.knobs)
    if "style" in space:
        space["style"] = tuple(style for style in space["style"] if style in styles)
    if accumulate == "f32" and "accumulate" in space:
        space["accumulate"] = tuple(kind for kind in space["accumulate"] if kind == "f32")
    if not all(space.values()):
        return None
    for _ in range(TRIES):
        knobs = {knob: rng.choice(values) for knob, values in space.items()}
        if not kept_out(family.name, knobs, without) and not refusal(family, knobs, problem):
            return knobs
    return None


def kept_out(family: str, knobs: Knobs, without: Without) -> bool:
    """Whether a setting of that family has all the values that are kept out together."""
    values = without.get(family)
    return values is not None and values.items() <= knobs.items()


def check_without(target: Target, without: Without) -> None:
    """Raises ValueError where a family or knob of what is kept out does not exist, or has no such value."""
    known = {family.name: family.knobs for family in families(target)}
    for name, values in without.items():
        if name not in known:
            raise ValueError(f"corpus.without names {name}, which is no family of {target.name}: {', '.join(known)}")
        for knob, value in values.items():
            if value not in known[name].get(knob, ()):
                can = ", ".join(map(str, known[name].get(knob, known[name])))
                raise ValueError(f"corpus.without: {name} has no {knob}={value}; choose from {can}")
        if not values:
            raise ValueError(f"corpus.without names no knob of {name}")


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


def plan(sample: Sample) -> str:
    """The setting of a sample as comments, one line for the family and one for each knob.

    A model that writes these lines first can read all its decisions in one place while it writes the code.
    """
    chosen = {"family": sample.family, **sample.knobs}
    return "".join(f"// {name}: {value}\n" for name, value in chosen.items())


def stated(text: str, target: Target) -> tuple[str, Knobs] | None:
    """The family and knobs in the plan of a source; None where it has no plan, or one of no family of the target."""
    first, *rest = text.splitlines(keepends=True) or [""]
    family = next((one for one in families(target) if first == f"{PLAN}{one.name}\n"), None)
    if family is None or len(rest) < len(family.knobs):
        return None
    knobs: Knobs = {}
    for (name, values), line in zip(family.knobs.items(), rest):
        chosen = next((value for value in values if line == f"// {name}: {value}\n"), None)
        if chosen is None:
            return None
        knobs[name] = chosen
    return family.name, knobs


def keeps_its_plan(text: str, target: Target, asked: Problem | None = None) -> bool:
    """Whether a source begins with a plan and is, letter for letter, what its family renders for that plan: for the
    problem that is `asked` for, else for any."""
    setting = stated(text, target)
    if setting is None:
        return False
    name, knobs = setting
    family = next(one for one in families(target) if one.name == name)
    served = (problem for problem in ([asked] if asked else forms(family)) if not refusal(family, knobs, problem))
    samples = (Sample(name, problem.layout, knobs, render(family, knobs, problem)) for problem in served)
    return any(text == plan(sample) + sample.source for sample in samples)


def without_plan(text: str) -> str:
    """The source without the plan that it may begin with."""
    if not text.startswith(PLAN):
        return text
    lines = text.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if not _PLAN_LINE.match(line)), len(lines))
    return "".join(lines[first:])
