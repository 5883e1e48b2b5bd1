"""A genetic algorithm over the settings of the kernel families, as autotuners use it (Vasilache et al., Tensor
Comprehensions, arXiv:1802.04730): tournaments among the best, uniform crossover within a family, mutation of one or two
knobs. Families are chosen by probability matching.

Problems are islands with migration (E. Cantú-Paz, A survey of parallel genetic algorithms, 1998): each generation
first tries the best settings that the nearest problems found in earlier generations, then known ones that are left,
together half of it; then children of its own. Where settings are known, children are of families that these or a trial
name: of a score of families most are slow for any one shape, and to try each of them once would spend a small budget.

Where a cost model ships for the target, it chooses each child among BROOD, as in Ansor (L. Zheng et al., OSDI 2020).
Two models of disjoint shapes, one choosing and one in the judge's place, say that 32 kernels find so what 64 found
before (experiments/h200/known_settings/simulate.py). A tenth of the children it does not choose.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from cudal2 import cost_model
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.search.liked import fastest_first
from cudal2.search.prior import start
from cudal2.search.proposer import Setting, Task, Trials, seeded
from cudal2.search.settings import (
    EXPLORE,
    PARENTS,
    allowed,
    collect,
    draw,
    elite,
    lent,
    matched,
    parsed,
    searched,
    space_of,
    tournament,
)
from cudal2.search.trials import History

BROOD = 32
"""So many children are thought of for each that is judged, where a cost model chooses."""


class Rated(msgspec.Struct, frozen=True):
    """A setting and the lower bound of its kernel's speedup, 0 unless it is correct."""

    setting: Setting
    low: float


class Evolution:
    """Raises ValueError where the configuration names no family that can serve its problems."""

    def __init__(self, history: History) -> None:
        self._config, self._device = history.config, history.environment.device
        self._families = searched(history.config)
        chooses = self._config.search.order == "cost" and self._config.search.tries_known
        self._model = cost_model.shipped(self._config.target) if chooses else None

    def propose(self, task: Task, trials: Trials, generation: int, count: int) -> Mapping[Candidate, str]:
        config, problem, families = self._config, task.problem, self._families[task.problem]
        rng, half = seeded(config, task, generation), config.search.generation // 2
        borrowed = [parsed(trial) for trial in lent(task, trials)[:half]]
        rated = [Rated(parsed(trial), trial.low) for trial in trials[problem]]
        tried = [*borrowed, *(trial.setting for trial in rated)]
        begins = generation == 0 or config.search.tries_known
        begun = start(config, self._device, problem, families, rng) if begins else []
        left = [setting for setting in begun if setting not in tried]
        first = iter(borrowed + left[: half - len(borrowed) if generation else None])
        names = {setting.family for setting in [*begun, *tried]}
        likely = [family for family in families if not begun or family.name in names]
        parents = fastest(problem, likely, rated)

        def born() -> Setting | None:
            return child(problem, likely, rated, parents, rng) or draw(problem, rng.choice(families), rng)

        def suggest() -> Setting | None:
            known = next(first, None)
            if known or self._model is None or rng.random() < EXPLORE:
                return known or born()
            brood = [one for one in (born() for _ in range(BROOD)) if one and one not in tried]
            return liked(self._model, problem, families, brood)

        return collect(suggest, problem, config.target, families, trials[problem], count)


def liked(
    model: cost_model.Model, problem: Problem, families: Sequence[Family], brood: Sequence[Setting]
) -> Setting | None:
    """Of a brood that child which the cost model thinks fastest, of those that their families render."""
    by_name = {family.name: family for family in families if model.knows(family.name)}
    known = [one for one in brood if one.family in by_name]
    able = [one for one in known if allowed(problem, by_name[one.family], one.knobs)]
    return fastest_first(model, problem, able)[0] if able else None


Parents = Mapping[str, Sequence[Knobs]]
"""By family the knobs of its fastest kernels, the fastest first."""


def fastest(problem: Problem, families: Sequence[Family], trials: Sequence[Rated]) -> Parents:
    """Of each family at most PARENTS that are right, and that it still renders."""
    found, ranked = {}, _ranked(trials)
    for family in families:
        own = (trial.setting.knobs for trial in ranked if trial.setting.family == family.name)
        found[family.name] = list(islice((knobs for knobs in own if allowed(problem, family, knobs)), PARENTS))
    return found


def _ranked(trials: Sequence[Rated]) -> list[Rated]:
    return sorted((trial for trial in trials if trial.low), key=lambda trial: -trial.low)


def child(
    problem: Problem, families: Sequence[Family], trials: Sequence[Rated], parents: Parents, rng: random.Random
) -> Setting | None:
    """A mutated crossover of two of its family's parents, which rules may refuse; None where one is to be drawn at
    random."""
    ranked = _ranked(trials)
    if not ranked or rng.random() < EXPLORE:
        return None
    by_name = {family.name: family for family in families}
    tried, best = ([trial.setting.family for trial in some] for some in (trials, ranked[: elite(len(ranked))]))
    family = by_name[matched(list(by_name), tried, best, rng)]
    good = parents[family.name]
    if not good:
        return draw(problem, family, rng)
    one, other = (good[tournament(len(good), rng)] for _ in range(2))
    knobs = {knob: rng.choice((one[knob], other[knob])) for knob in family.knobs}
    space = space_of(problem, family)
    free = [knob for knob, values in space.items() if len(values) > 1]
    for knob in rng.sample(free, min(len(free), rng.choice((1, 2)))):
        knobs[knob] = _mutated(knobs[knob], space[knob], rng)
    return Setting(family.name, knobs)


def _mutated(value: int | str, values: Sequence[int | str], rng: random.Random) -> int | str:
    """Another of `values`; for a number, half of the time the next larger or smaller one."""
    place = values.index(value)
    near = [values[i] for i in (place - 1, place + 1) if 0 <= i < len(values)]
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.choice(near)
    return rng.choice([other for other in values if other != value])


make = Evolution
