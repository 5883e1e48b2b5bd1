"""Settings that are known to be fast, for a policy to learn: from data/settings, from a file, and lent to other forms.

What is fast was measured, or labelled, in one form of a product only: B transposed, summed in f32. Tiles, stages and
waves matter alike in the others, so a setting is lent to the same product in another layout or accumulator, if its
family has such a kernel. That is a guess and was not measured; but without it nothing is known there at all.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from cudal2 import corpus
from cudal2.config import SftConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.search.known import listed
from cudal2.search.prior import known_settings
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.split import training, unseen
from cudal2.target import find

FASTEST = 2
"""How many settings, or kernels, are taken for each shape."""

Known = tuple[Problem, Setting]


def families(config: SftConfig) -> dict[str, Family]:
    """The target's families by name."""
    return {family.name: family for family in corpus.families(find(config.target))}


def nearest(config: SftConfig, problems: Sequence[Problem]) -> list[Known]:
    """For each of the problems the settings that `search.prior` would try first.

    Raises ValueError where none are known for the target.
    """
    every = list(families(config).values())
    found = [
        (problem, setting)
        for problem in problems
        for setting in _shown(config, known_settings(config.target, problem, every))[:FASTEST]
    ]
    if problems and not found:
        raise ValueError(f"no settings are known for {config.target} in data/settings; use examples=families")
    return found


def stated(config: SftConfig) -> list[Known]:
    """What the file `config.settings` says, but for problems that training may not see; with `also_known` what is
    `nearest` to the shapes of the grid, too; and what that lends to other forms.

    Raises ValueError where there is no such file, or nothing in it.
    """
    every = listed(Path(config.settings))
    found = [(problem, one) for problem, one in every if not unseen(problem) and _shown(config, [one])]
    if not found:
        raise ValueError(f"settings={config.settings} holds no setting of a problem that training may see")
    if config.also_known:
        found += nearest(config, training())
    return found + _lent(found, config, families(config))


def _shown(config: SftConfig, settings: Sequence[Setting]) -> list[Setting]:
    """Those that are not kept out of the corpus."""
    return [one for one in settings if not corpus.kept_out(one.family, one.knobs, config.corpus.without)]


def _lent(found: Sequence[Known], config: SftConfig, by_name: Mapping[str, Family]) -> list[Known]:
    """Each setting for one form that is drawn from `config.corpus`, where that is another one than its own."""
    rng, lent = random.Random(f"lent {config.seed}"), list[Known]()
    for problem, setting in found:
        layout, accumulate = rng.choice(config.corpus.layouts), rng.choice(config.corpus.accumulates)
        if accumulate not in problem.type.accumulators:
            accumulate = problem.accumulate
        other = replace(problem, layout=layout, accumulate=accumulate)
        if other != problem and allowed(other, by_name[setting.family], setting.knobs):
            lent.append((other, setting))
    return lent
