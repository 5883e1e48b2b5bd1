"""The settings that a search begins with (`search.prior`): known ones, with a policy's before them on request, or what
NVIDIA's heuristics propose.

*known*: earlier searches found them fast, and they ship (`known`). Where nothing is known for a problem's dtype and
epilogue, what is known for fp16 alone is tried, and where nothing is for B as K×N, what is known for N×K: what a kernel
waits for is the same.

A setting that is fast for one shape may waste a wave on a near one: 192 tiles on 132 multiprocessors take as long as
264. A campaign on an H200 measured 129 pairs of kernels of one shape of which one left 10% more of the multiprocessors
idle: it was the slower one 121 times (experiments/h200/campaign/waves.py). So such settings come last.

With `search.order=cost` every second of them is one that the cost model likes (`liked`). Its first is better than the
nearest shape's. Its next ones are much alike: so of each tile and cluster one comes before all others
(experiments/h200/known_settings, "Settings that differ in more details"), and those of the nearest shapes in turn
(experiments/h200/learning, "Known settings by the cost model").
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest

from cudal2.arch import MULTIPROCESSORS
from cudal2.config import SearchConfig
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.heuristics import advise, follow
from cudal2.search.known import nearest_problems, shipped_settings
from cudal2.search.liked import most_liked
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed, first_of_each, shape_of
from cudal2.search.written import written

NEAREST = 8
"""How many problems settings are taken from at least."""
ENOUGH = 16
"""How many distinct settings are taken if there are: near problems of few rows share theirs, and what a search tries
beyond them is drawn at random."""
FILLED = 0.85
"""A setting comes last if it fills less than this share of what it filled where it was found."""


def start(
    config: SearchConfig,
    device: str,
    problem: Problem,
    families: Sequence[Family],
    rng: random.Random,
) -> list[Setting]:
    """The settings that a search begins with, by `search.prior`.

    `device` is the environment's. Raises ValueError where NVIDIA's heuristics are asked for but missing, or do not
    know the device, and as `written` does.
    """
    if config.search.tries_known:
        known = known_settings(config.target, problem, families)
        if config.search.order == "cost":
            known = alternating(liked_settings(config.target, problem, families), known)
        first = written(config)[problem] if config.search.prior == "policy" else []
        return [*first, *(setting for setting in known if setting not in first)]
    if config.search.prior == "nvidia":
        advice = advise(problem, device, max(1, config.search.generation // 2))
        return follow(advice, problem, families, rng)
    return []


def known_settings(target: str, problem: Problem, families: Sequence[Family]) -> list[Setting]:
    """Settings of the nearest problems of that layout, dtype and epilogue, else of fp16 without one.

    First the fastest of each problem, nearest first, then the second of each, and so on; those that waste a wave after
    all others. Empty where nothing is known. Settings that `families` do not render (any more) are passed over.
    """
    by_name = {family.name: family for family in families}
    shipped, multiprocessors = shipped_settings(target), MULTIPROCESSORS.get(target, 0)

    def lent(other: Problem) -> list[tuple[bool, int, Setting]]:
        """Whether each setting wastes a wave here, its rank there, and the setting."""
        rendered = [setting for setting in shipped[other] if setting.family in by_name]
        able = [setting for setting in rendered if allowed(problem, by_name[setting.family], setting.knobs)]
        here, there = (
            [filled(where, by_name[one.family], one.knobs, multiprocessors) for one in able]
            for where in (problem, other)
        )
        wasteful = [share < FILLED * before for share, before in zip(here, there)]
        return [(wasteful[rank], rank, setting) for rank, setting in enumerate(able)]

    def fits(found: list[tuple[bool, int, Setting]]) -> bool:
        return not all(wasteful for wasteful, *_ in found)

    others = nearest_problems(target, problem)
    nearest = _enough(filter(fits, map(lent, others))) or _enough(filter(None, map(lent, others)))
    ranked = [
        ((wasteful, place >= NEAREST, rank), setting)
        for place, found in enumerate(nearest)
        for wasteful, rank, setting in found
    ]
    ranked.sort(key=lambda one: one[0])  # keeps the nearest first
    return list({to_json(setting): setting for _, setting in ranked}.values())


def liked_settings(target: str, problem: Problem, families: Sequence[Family]) -> list[Setting]:
    """Of the settings of many near problems those that the cost model thinks fastest, as many as are ENOUGH, `varied`.

    As `known_settings` where no model ships for the target.
    """
    liked, names = most_liked(target, problem), {family.name for family in families}
    if liked is None:
        return known_settings(target, problem, families)
    return list(islice(varied(one for one in liked if one.family in names), ENOUGH))


def varied(settings: Iterable[Setting]) -> Iterator[Setting]:
    """The first of each tile, cluster and split of a family, then all others; of a family without tiles each."""
    return first_of_each(settings, shape_of)


def alternating(some: Sequence[Setting], others: Sequence[Setting]) -> list[Setting]:
    """One of some and one of others in turn; each setting once, where it comes first."""
    pairs = zip_longest(some, others)
    return list({to_json(one): one for pair in pairs for one in pair if one is not None}.values())


def _enough(lent: Iterable[list[tuple[bool, int, Setting]]]) -> list[list[tuple[bool, int, Setting]]]:
    """What NEAREST problems lend, or as many more as it takes to have ENOUGH distinct settings."""
    found, distinct = [], set[str]()
    for one in lent:
        found.append(one)
        distinct.update(to_json(setting) for *_, setting in one)
        if len(found) >= NEAREST and len(distinct) >= ENOUGH:
            break
    return found


def filled(problem: Problem, family: Family, knobs: Knobs, multiprocessors: int) -> float:
    """The share of the multiprocessors' time that is used: 192 tiles on 132 take two waves, so 0.73.

    1 for one wave or less, where smaller tiles are not always faster, and where it is not known how a family shares out
    its work.
    """
    slots = multiprocessors * int(knobs.get("blocks", 1))
    if not family.whole_tiles or not slots:
        return 1.0
    tiles = math.ceil(problem.m / int(knobs["tile_m"])) * math.ceil(problem.n / int(knobs["tile_n"]))
    return tiles / (math.ceil(tiles / slots) * slots) if tiles > slots else 1.0
