"""Settings that ship because earlier searches found them fast; new searches start from them.

`data/settings/TARGET.jsonl`, if it exists, holds one `Known` per line, several for a problem, the fastest first. A
line does not state the accumulator; the family's knob `accumulate` does.
"""

from collections.abc import Sequence
from functools import cache
from itertools import islice, zip_longest

import msgspec

from cudal2.archive.selection import by_distance
from cudal2.assets import asset
from cudal2.corpus import Family, Knobs
from cudal2.problem import Layout, Problem, parse
from cudal2.search.settings import Setting, allowed

NEAREST = 8
"""How many problems settings are taken from."""


class Known(msgspec.Struct, frozen=True):
    """One setting; `problem` is written M_N_K."""

    problem: str
    layout: Layout
    family: str
    knobs: Knobs


def settings(target: str, problem: Problem, families: Sequence[Family]) -> list[Setting]:
    """Settings of the nearest problems of the same layout: first the fastest of each problem, nearest first, then the
    second of each, and so on. Empty where nothing is known.

    Settings that `families` do not render (any more) are passed over.
    """
    by_name = {family.name: family for family in families}
    shipped = _shipped(target)

    def usable(other: Problem) -> list[Setting]:
        rendered = [setting for setting in shipped[other] if setting.family in by_name]
        return [setting for setting in rendered if allowed(problem, by_name[setting.family], setting.knobs)]

    others = by_distance(msgspec.structs.replace(problem, accumulate="f32"), list(shipped))
    nearest = islice(filter(None, map(usable, others)), NEAREST)
    return [setting for rank in zip_longest(*nearest) for setting in rank if setting]


@cache
def _shipped(target: str) -> dict[Problem, list[Setting]]:
    """The target's file, by problem; all problems are given as f32."""
    path = asset("data").joinpath("settings", f"{target}.jsonl")
    found: dict[Problem, list[Setting]] = {}
    if path.exists():
        for line in msgspec.json.Decoder(Known).decode_lines(path.read_bytes()):
            found.setdefault(parse(line.problem, line.layout), []).append(Setting(line.family, line.knobs))
    return found
