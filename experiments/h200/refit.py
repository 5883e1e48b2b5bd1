"""Settings for the shapes that a campaign lost: which to explore there, and what is known of them then.

    python experiments/h200/refit.py propose RUN refit        # an evaluated run; needs no GPU
    python experiments/h200/explore.py refit/settings.jsonl $(cat refit/shapes.txt) refit/out.jsonl 500
    python experiments/h200/refit.py adopt refit/out.jsonl           # into data/settings

`propose` takes the lost shapes and the layers of models, none of the hundred shapes that learning is reported on, and
the settings known to be fast near them: as they are, and with the tiles that fill the multiprocessors best. `adopt`
puts the fastest of each shape in the place of what was known of it.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from cudal2 import corpus
from cudal2.config import ShapesConfig
from cudal2.corpus import Family, Knobs
from cudal2.evaluation.results import load
from cudal2.evaluation.tables import FASTEST, against
from cudal2.problem import LLM_SHAPES, Problem, parse, stratified
from cudal2.search import prior
from cudal2.search.proposer import Setting
from cudal2.search.settings import allowed
from cudal2.split import kept_apart
from cudal2.target import find

TARGET, FAMILY = "sm_90a", "warp_specialised"
LEAST, LOST = 1e9, 0.98
"""Shapes of less work are won; a speedup below LOST is worth a search."""
NEAR, FULL, SETTINGS, KEPT = 4, 0.9, 128, 8
"""Known settings refitted for a shape; what their tiles must fill; settings explored in all, and kept of a shape."""
REPAIRS = ("consumers", "schedule", "epilogue", "producer", "cluster")
"""Knobs that may follow a tile, one or two of them."""


def lost(run: Path) -> list[Problem]:
    """The shapes to search, so that every beginning is a fair part of them."""
    fastest = {row.problem: against(row, FASTEST, "device") for row in load(run).rows}
    reported = set(ShapesConfig(names=("sample",)).problems())
    found = {
        problem for problem, timing in fastest.items() if timing and timing.speedup < LOST and problem.flop >= LEAST
    }
    shapes = (found | {parse(name) for name in LLM_SHAPES}) - reported
    return stratified(problem for problem in shapes if not kept_apart(problem))


def repaired(family: Family, knobs: Knobs, problem: Problem, repairs: Sequence[str]) -> Knobs | None:
    """The setting with at most two of these knobs changed, as few as it takes for the problem; None where no two do."""
    singles = [{knob: value} for knob in repairs if knob in knobs for value in family.knobs[knob]]
    ways = [{}, *singles, *(one | other for one, other in product(singles, repeat=2))]
    return next((knobs | way for way in ways if allowed(problem, family, knobs | way)), None)


def refitted(setting: Setting, problem: Problem, family: Family) -> list[Setting]:
    """The setting with every tile that fills the multiprocessors, as few other knobs changed as that takes."""
    found = []
    for tile_m, tile_n in product(family.knobs["tile_m"], family.knobs["tile_n"]):
        tiled = setting.knobs | {"tile_m": tile_m, "tile_n": tile_n}
        if prior.filled(problem, family, tiled, prior.MULTIPROCESSORS[TARGET]) < FULL:
            continue
        found += [Setting(FAMILY, knobs) for knobs in [repaired(family, tiled, problem, REPAIRS)] if knobs]
    return found


def propose(run: Path, folder: Path) -> None:
    families = corpus.families(find(TARGET))
    [family] = [one for one in families if one.name == FAMILY]
    shapes, wanted = lost(run), Counter[str]()
    for problem in shapes:
        near = prior.known_settings(TARGET, problem, families)[: 2 * NEAR]
        fitted = [
            one for setting in near[:NEAR] if setting.family == FAMILY for one in refitted(setting, problem, family)
        ]
        named = (json.dumps({"family": one.family, "knobs": one.knobs}) for one in [*near, *fitted])
        wanted.update(dict.fromkeys(named, 1))
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [line for line, _ in wanted.most_common(SETTINGS)]
    (folder / "settings.jsonl").write_text("\n".join(chosen) + "\n")
    (folder / "shapes.txt").write_text(",".join(problem.mnk for problem in shapes))
    print(f"{len(shapes)} shapes, {len(chosen)} of {len(wanted)} settings")


def explored(*outs: Path) -> dict[str, list[dict]]:
    """What was right on each shape, in all these rounds: the fastest first, by speedups, for each round has a baseline
    of its own."""
    found: dict[str, list[dict]] = {}
    for row in (json.loads(line) for out in outs for line in out.open()):
        if row["said"] == "ok":
            found.setdefault(row["problem"], []).append(row)
    return {name: sorted(rows, key=lambda row: (-row["speedup"], row["us"])) for name, rows in found.items()}


def setting_of(line: dict) -> str:
    return json.dumps([line["family"], sorted(line["knobs"].items())])


def adopt(outs: list[Path], kept: int = KEPT) -> None:
    """Puts the fastest `kept` of each shape, of all these rounds, in the place of what was known of it, or behind that
    where none of it was asked again."""
    found = explored(*outs)
    lines = [
        {"problem": name, "layout": "tn", "family": row["family"], "knobs": row["knobs"]}
        for name, rows in found.items()
        for row in rows[:kept]
    ]
    path = Path("data") / "settings" / f"{TARGET}.jsonl"
    table = list(map(json.loads, path.open()))
    asked = {name: {setting_of(row) for row in rows} for name, rows in found.items()}
    again = {line["problem"] for line in table if setting_of(line) in asked.get(line["problem"], ())}
    before = [line for line in table if line["problem"] not in again]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*before, *lines]))
    print(f"{path}: {len(found)} shapes more or anew, {len({line['problem'] for line in before})} as they were")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["propose", run, folder]:
            propose(Path(run), Path(folder))
        case ["adopt", out]:
            adopt([Path(out)])
        case ["adopt", out, kept]:
            adopt([Path(out)], int(kept))
