"""Settings that ship because earlier searches found them fast; new searches start from them.

`data/settings/TARGET.jsonl`, if it exists, holds one `Known` per line, several for a problem, the fastest first. A
line does not state the accumulator; the family's knob `accumulate` does. Where nothing is known for a problem's dtype
and epilogue, what is known for fp16 alone is tried: what a kernel waits for is the same.

A setting that is fast for one shape may waste a wave on a near one: 192 tiles on 132 multiprocessors take as long as
264. A campaign on an H200 measured 129 pairs of kernels of one shape of which one left 10% more of the multiprocessors
idle: it was the slower one 121 times (experiments/h200/campaign/waves.py). So such settings come last.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import msgspec

from cudal2.archive.selection import by_distance
from cudal2.assets import asset
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem, parse
from cudal2.search.settings import Setting, allowed
from cudal2.split import kept_apart

NEAREST = 8
"""How many problems settings are taken from."""
MULTIPROCESSORS = {"sm_90a": 132}
"""Those of the GPU on which a target's settings were found, where it is one."""
FILLED = 0.85
"""A setting comes last if it fills less than this share of what it filled where it was found."""


class Known(msgspec.Struct, frozen=True):
    """One setting; `problem` is written M_N_K."""

    problem: str
    layout: Layout
    family: str
    knobs: Knobs
    dtype: str = "fp16"
    epilogue: str = "none"


def settings(target: str, problem: Problem, families: Sequence[Family]) -> list[Setting]:
    """Settings of the nearest problems of that layout, dtype and epilogue, else of fp16 without one.

    First the fastest of each problem, nearest first, then the second of each, and so on; those that waste a wave after
    all others. Empty where nothing is known. Settings that `families` do not render (any more) are passed over.
    """
    by_name = {family.name: family for family in families}
    shipped, multiprocessors = _shipped(target), MULTIPROCESSORS.get(target, 0)

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

    twin = msgspec.structs.replace(problem, accumulate="f32")
    alike = [other for other in shipped if (other.dtype, other.epilogue) == (twin.dtype, twin.epilogue)]
    if not alike:
        twin = msgspec.structs.replace(twin, dtype="fp16", epilogue="none")
        alike = [other for other in shipped if (other.dtype, other.epilogue) == (twin.dtype, twin.epilogue)]
    others = by_distance(twin, alike)
    nearest = list(islice(filter(fits, map(lent, others)), NEAREST))
    nearest = nearest or list(islice(filter(None, map(lent, others)), NEAREST))
    ranked = sorted((one for found in nearest for one in found), key=lambda one: one[:2])  # keeps the nearest first
    return [setting for *_, setting in ranked]


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


@cache
def _shipped(target: str) -> dict[Problem, list[Setting]]:
    """The target's file, by problem; all problems are given as f32. What is kept apart to measure on is passed over."""
    path = asset("data").joinpath("settings", f"{target}.jsonl")
    found: dict[Problem, list[Setting]] = {}
    for line in read(path):
        problem = parse(line.problem, line.layout, dtype=line.dtype, epilogue=line.epilogue)
        if not kept_apart(problem):
            found.setdefault(problem, []).append(Setting(line.family, line.knobs))
    return found


def read(path: Path) -> list[Known]:
    """The lines of such a file; none where there is no file."""
    return msgspec.json.Decoder(Known).decode_lines(path.read_bytes()) if path.exists() else []
