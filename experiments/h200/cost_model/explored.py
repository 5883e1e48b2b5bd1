"""What exploring wrote of a setting on a problem, and what the families of today still have of it."""

import msgspec

from cudal2 import corpus
from cudal2.search.proposer import Setting
from cudal2.target import find

TARGET = "sm_90a"
FAMILIES = corpus.families(find(TARGET))
BY_NAME = {family.name: family for family in FAMILIES}


class Line(msgspec.Struct, frozen=True):
    """A setting on a problem, as the exploration wrote it; what was `slow` was dropped after one cold run."""

    problem: str
    family: str
    knobs: corpus.Knobs
    said: str = "ok"
    us: float = 0.0
    speedup: float = 0.0


def today(line: Line) -> Setting | None:
    """The setting in the family's knobs of today; None where it has lost that value."""
    family, knobs = BY_NAME[line.family], line.knobs
    if set(knobs) - set(family.knobs) == {"hint"} and knobs["hint"] == "none":
        knobs = {name: value for name, value in knobs.items() if name != "hint"}
    held = set(knobs) == set(family.knobs) and all(knobs[name] in family.knobs[name] for name in knobs)
    return Setting(line.family, knobs) if held else None
