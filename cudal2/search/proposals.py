"""Which settings of the kernel families to try next: drawn at random, or children of the best so far.

`evolve` is a genetic algorithm as autotuners use it (Vasilache et al., Tensor Comprehensions, arXiv:1802.04730):
tournaments among the best, uniform crossover within a family, mutation of one or two knobs. Families are chosen by
probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator probabilities, GECCO 2005).
"""

import random
from collections.abc import Sequence
from itertools import islice

import msgspec

from cudal2 import corpus
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem
from cudal2.records import digest

EXPLORE = 0.1
"""Share of an evolved generation that is drawn at random all the same; also shared out among the families."""

ELITE = 0.25
"""This share of the correct kernels counts as success when a family is chosen."""

PARENTS = 8
"""Only so many of a family's best settings have children; each is the best of `TOURNAMENT` drawn from them."""

TOURNAMENT = 3

PATIENCE = 500
"""So many proposals in a row that were refused or known already mean that hardly any are left."""

Space = dict[str, tuple[int | str, ...]]
"""The values worth trying for each knob."""


class Setting(msgspec.Struct, frozen=True):
    """A value for each knob of a family, and the seconds of wall time that went into judging it."""

    family: str
    knobs: Knobs
    seconds: float = 0.0


class Trial(msgspec.Struct, frozen=True):
    """A setting's verdict, the `index`-th of its generation: `source` is the hash of what it renders to, `low` the
    lower bound of that kernel's speedup over the fastest baseline, 0 unless it is judged and correct."""

    setting: Setting
    generation: int
    index: int
    source: str
    low: float = 0.0


def propose(
    method: str,
    problem: Problem,
    families: Sequence[Family],
    trials: Sequence[Trial],
    first: Sequence[Setting],
    count: int,
    rng: random.Random,
) -> dict[str, Setting]:
    """Up to `count` settings by their sources, none rendering to what was tried; fewer when nothing is left.

    The settings `first` come first, as far as they render here; then `method` "random" draws a family uniformly
    and its allowed settings uniformly, "evolve" makes children of the best `trials`.
    """
    tried = {trial.source for trial in trials}
    found: dict[str, Setting] = {}
    by_name = {family.name: family for family in families}
    wanted = iter([setting for setting in first if setting.family in by_name])
    misses = 0
    while len(found) < count and misses < PATIENCE:
        misses += 1
        setting = next(wanted, None)
        if setting is None and method == "evolve":
            setting = _child(problem, families, trials, rng)
        setting = setting or draw(problem, rng.choice(families), rng)
        if setting and allowed(problem, by_name[setting.family], setting.knobs):
            source = corpus.render(by_name[setting.family], setting.knobs, problem.layout)
            if source not in found and digest(source) not in tried:
                found[source] = setting
                misses = 0
    return found


def _child(problem: Problem, families: Sequence[Family], trials: Sequence[Trial], rng: random.Random) -> Setting | None:
    """A mutated cross of two good settings; None where one is better drawn at random. May be refused."""
    ranked = sorted((trial for trial in trials if trial.low), key=lambda trial: -trial.low)
    if not ranked or rng.random() < EXPLORE:
        return None
    family = _choose(families, trials, ranked, rng)
    good = [trial for trial in ranked if trial.setting.family == family.name]
    parents = list(islice((t.setting.knobs for t in good if allowed(problem, family, t.setting.knobs)), PARENTS))
    if not parents:
        return draw(problem, family, rng)
    one, other = (parents[min(rng.randrange(len(parents)) for _ in range(TOURNAMENT))] for _ in range(2))
    knobs = {knob: rng.choice((one[knob], other[knob])) for knob in family.knobs}
    space = space_of(problem, family)
    free = [knob for knob, values in space.items() if len(values) > 1]
    for knob in rng.sample(free, min(len(free), rng.choice((1, 2)))):
        knobs[knob] = _mutated(knobs[knob], space[knob], rng)
    return Setting(family.name, knobs)


def _mutated(value: int | str, values: Sequence[int | str], rng: random.Random) -> int | str:
    """Another of `values`: of a number every other time the next larger or smaller one."""
    place = values.index(value)
    near = [values[i] for i in (place - 1, place + 1) if 0 <= i < len(values)]
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.choice(near)
    return rng.choice([other for other in values if other != value])


def _choose(families: Sequence[Family], trials: Sequence[Trial], ranked: Sequence[Trial], rng: random.Random) -> Family:
    """Probability matching: in proportion to the share of a family's trials among the elite, plus a minimum.

    A family not tried yet counts as a success.
    """
    elite = ranked[: max(1, round(ELITE * len(ranked)))]
    quality = []
    for family in families:
        tried = sum(trial.setting.family == family.name for trial in trials)
        quality.append(sum(trial.setting.family == family.name for trial in elite) / tried if tried else 1.0)
    total = sum(quality) or 1.0
    weights = [EXPLORE / len(families) + (1 - EXPLORE) * value / total for value in quality]
    return rng.choices(families, weights)[0]


def draw(problem: Problem, family: Family, rng: random.Random, space: Space | None = None) -> Setting | None:
    """An allowed setting within `space`, each as likely; None where hardly any can be allowed."""
    space = space or space_of(problem, family)
    for _ in range(PATIENCE):
        knobs = {knob: rng.choice(values) for knob, values in space.items()}
        if not corpus.refusal(family, knobs, problem.layout):
            return Setting(family.name, knobs)
    return None


def space_of(problem: Problem, family: Family) -> Space:
    """The values worth trying: one style, as styles differ in names and comments; no f16 sums unless asked for."""
    space = dict(family.knobs)
    space["style"] = space["style"][:1]
    if problem.accumulate == "f32" and "accumulate" in space:
        space["accumulate"] = tuple(value for value in space["accumulate"] if value != "f16")
    return space


def allowed(problem: Problem, family: Family, knobs: Knobs) -> bool:
    """Whether the family as it is now renders that setting for the problem."""
    space = space_of(problem, family)
    fits = knobs.keys() == space.keys() and all(value in space[knob] for knob, value in knobs.items())
    return fits and not corpus.refusal(family, knobs, problem.layout)
