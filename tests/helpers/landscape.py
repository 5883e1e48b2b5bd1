"""Made-up kernel families whose speed is a formula of their knobs, and a pool that judges by it without a compiler.

Their kernels are settings as JSON.
"""

import json

from fakes import ENVIRONMENT, FakePool

from cudal2.corpus import Family, Rule
from cudal2.records import Candidate, Status, Timing, Verdict

TILES = (8, 16, 32, 64, 128, 256)
KNOBS = {
    **{"tile_m": TILES, "tile_n": TILES, "tile_k": TILES, "stages": (1, 2, 3, 4, 5, 6)},
    **{"raster": ("row", "column", "grouped"), "accumulate": ("f32", "f16"), "style": ("plain", "terse", "tutor")},
}
BEST = {"tile_m": 64, "tile_n": 128, "tile_k": 32, "stages": 4, "raster": "grouped"}


def family(name: str, **knobs) -> Family:
    return Family(
        summary=name,
        layouts=("nn", "tn"),
        knobs=KNOBS | knobs,
        rules=(Rule("tile_m * tile_n > 16384", "it does not fit"),),
        **{"name": name, "folder": "cpu"},
    )


FAMILIES = (family("good"), family("fair"), family("broken"))


def speed(name: str, knobs: dict) -> float:
    """1.2 at best, a fifth less for each step away from it; 0 where the kernel is wrong."""
    steps = sum(abs(KNOBS[knob].index(knobs[knob]) - KNOBS[knob].index(best)) for knob, best in BEST.items())
    return {"good": 1.2, "fair": 0.8, "broken": 0.0}[name] * 0.8**steps


class Landscape(FakePool):
    """Judges settings by `speed`, notes what it was asked, and reaches no verdict where `fails(how many)` says so.

    `batches` are the candidates of each call, `asked` the sources in the order judged: the last ones first where
    `backwards`, as another device may be the quicker one.
    """

    def __init__(self, fails=lambda asked: False, backwards=False):
        super().__init__()
        self.asked: list[str] = []
        self.batches: list[list[Candidate]] = []
        self.fails, self.backwards = fails, backwards

    def evaluate(self, candidates, progress):
        self.batches.append(list(candidates))
        order = -1 if self.backwards else 1
        return super().evaluate(candidates[::order], progress)[::order]

    def _one(self, candidate):
        self.asked.append(candidate.source)
        if self.fails(len(self.asked)):
            return None
        value = speed(*json.loads(candidate.source).values())
        status = Status.OK if value else Status.WRONG
        timing = Timing("base", "device", 1.0, value, value, 0.99 * value, 1.01 * value, 5, 10)
        found = Verdict(candidate.key, candidate.problem, candidate.target, status, ENVIRONMENT)
        return Verdict(
            **{f: getattr(found, f) for f in found.__struct_fields__} | {"timings": (timing,) if value else ()}
        )
