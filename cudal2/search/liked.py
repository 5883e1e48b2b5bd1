"""What the cost model likes of known settings: those of many near shapes, and the best of them with other tiles.

A table of near shapes has tiles that fit their rows. What the model likes most is therefore tried with all tiles of its
family: of 574 rows eight tiles of 72 are as good as full.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product

import msgspec
import numpy as np

from cudal2 import corpus, cost_model
from cudal2.corpus import Family
from cudal2.corpus.family import form
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.known import nearest_problems, shipped_settings
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.target import find

TILE = ("tile_m", "tile_n")
WIDE = 256
"""The cost model chooses among the settings of so many problems. All, 1,320 then, held a setting that it thinks 0.2%
faster, and took four times as long."""
FITTED = 24
"""So many settings that the cost model likes most are tried with all tiles. Of 8 it finds nearly as much (as another
model judges: experiments/h200/known_settings, "Tiles of a shape's own")."""


@cache
def most_liked(target: str, problem: Problem) -> list[Setting] | None:
    """The settings of the WIDE nearest problems that serve this one, and the FITTED first of them with all tiles, the
    fastest first; None where no model ships for the target."""
    model, shipped, kind = cost_model.shipped(target), shipped_settings(target), form(problem)
    if model is None:
        return None
    near = {to_json(one): one for other in nearest_problems(target, problem)[:WIDE] for one in shipped[other]}
    known = [one for one in near.values() if model.knows(one.family)]
    able = fastest_first(model, problem, (one for one in known if _serves(target, kind, to_json(one))))
    tiled = (other for one in able[:FITTED] for other in _with_tiles(target, kind, to_json(one)))
    return fastest_first(model, problem, {to_json(one): one for one in (*able, *tiled)}.values())


def fastest_first(model: cost_model.Model, problem: Problem, settings: Iterable[Setting]) -> list[Setting]:
    """These settings as the model orders them; equals stay as they came."""
    some = list(settings)
    speeds = model.speeds(problem, [(one.family, one.knobs) for one in some])
    return [some[place] for place in np.argsort(-speeds, kind="stable")]


# Rules take long to ask, and say the same for all problems of a form (corpus.form).


@cache
def _serves(target: str, kind: Problem, setting: str) -> bool:
    one = msgspec.json.decode(setting, type=Setting)
    family = _families(target).get(one.family)
    return family is not None and allowed(kind, family, one.knobs)


@cache
def _with_tiles(target: str, kind: Problem, setting: str) -> tuple[Setting, ...]:
    one = msgspec.json.decode(setting, type=Setting)
    return tuple(with_tiles(kind, _families(target)[one.family], one))


@cache
def _families(target: str) -> dict[str, Family]:
    return {family.name: family for family in corpus.families(find(target))}


def with_tiles(problem: Problem, family: Family, setting: Setting) -> Iterator[Setting]:
    """The setting with each tile that its family allows there; none where the family has no tiles."""
    sizes = ([(name, value) for value in family.knobs[name]] for name in TILE if name in family.knobs)
    for tile in product(*sizes):
        knobs = setting.knobs | dict(tile)
        if tile and not corpus.refusal(family, knobs, problem):
            yield Setting(family.name, knobs)
