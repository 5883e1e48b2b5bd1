"""A genetic algorithm over the settings of the kernel families, as autotuners use it (Vasilache et al., Tensor
Comprehensions, arXiv:1802.04730): tournaments among the best, uniform crossover within a family, mutation of one or two
knobs. Families are chosen by probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator
probabilities, GECCO 2005).

Problems are islands that exchange settings: each generation takes over the best ones of the nearest problems, as
found in earlier generations, before it makes children of its own (E. Cantú-Paz, A survey of parallel genetic
algorithms, 1998, calls it migration).
"""

import random
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.search import known, prior
from cudal2.search.history import History
from cudal2.search.proposer import Task, Trials, seeded
from cudal2.search.settings import Setting, allowed, collect, draw, parsed, searched, space_of

EXPLORE = 0.1
"""Share of an evolved generation that is drawn at random all the same; also shared out among the families."""

ELITE = 0.25
"""This share of the correct kernels counts as success when a family is chosen."""

PARENTS = 8
"""Only so many of a family's best settings have children; each is the best of `TOURNAMENT` drawn from them."""

TOURNAMENT = 3


class Rated(msgspec.Struct, frozen=True):
    """A setting and the lower bound of its kernel's speedup, 0 unless it is correct."""

    setting: Setting
    low: float


class Evolution:
    """Raises ValueError where the configuration names no family that can serve its problems."""

    def __init__(self, history: History) -> None:
        self._config, self._device = history.config, history.environment.device
        self._families = searched(history.config)

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        problem, families = task.problem, self._families[task.problem]
        rng = seeded(self._config, task, generation)
        first = iter(self._first(task, trials, generation, rng))
        rated = [Rated(parsed(trial), trial.low) for trial in trials[problem]]

        def suggest() -> Setting | None:
            return next(first, None) or child(problem, families, rated, rng) or draw(problem, rng.choice(families), rng)

        return collect(suggest, problem, self._config.target, families, trials[problem], count)

    def _first(self, task: Task, trials: Trials, generation: int, rng: random.Random) -> list[Setting]:
        """Settings to be tried before any are made: at most half a generation lent, and at the very first a prior's."""
        config, families = self._config, self._families[task.problem]
        half = config.search.generation // 2
        first = lent(task, trials)[:half]
        if generation == 0 and config.search.prior == "known":
            first += known.settings(config.target, task.problem, families)
        if generation == 0 and config.search.prior == "nvidia":
            advice = prior.advise(task.problem, self._device, max(1, half))
            first += prior.follow(advice, task.problem, families, rng)
        return first


def lent(task: Task, trials: Trials) -> list[Setting]:
    """The lenders' best settings that this problem has not tried."""
    tried = {trial.source_hash for trial in trials[task.problem]}
    best: dict[str, Setting] = {}
    for lender in task.lenders:
        if correct := [trial for trial in trials[lender] if trial.low]:
            top = max(correct, key=lambda trial: trial.low)
            best.setdefault(top.source_hash, parsed(top))
    return [setting for source_hash, setting in best.items() if source_hash not in tried]


def child(problem: Problem, families: Sequence[Family], trials: Sequence[Rated], rng: random.Random) -> Setting | None:
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


def _choose(families: Sequence[Family], trials: Sequence[Rated], ranked: Sequence[Rated], rng: random.Random) -> Family:
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


make = Evolution
