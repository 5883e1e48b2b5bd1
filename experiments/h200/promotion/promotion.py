"""How much of a row the copy engine should bring into the L2 beside what is asked for: the same kernels, both ways.

    python experiments/h200/promotion/promotion.py propose OUT                # at 67e340f7; needs no GPU
    sed -i s/L2_PROMOTION_L2_256B/L2_PROMOTION_L2_128B/ data/families/sm_90a/parts/describe.j2       # or 64B, NONE
    python experiments/h200/explore.py OUT/astray.jsonl $(cat OUT/astray.txt) astray-128.jsonl       # and aligned
    python experiments/h200/promotion/promotion.py > experiments/h200/promotion/promotion.txt

A tensor map states a "promotion": what it reads is rounded up to so many bytes on its way into the L2. `propose` names
shapes and the known settings of each, by chance; promotion.jsonl.xz holds what explore.py said, with the bytes of each
line. Its trials: `first` (at hand when the idea came: of the shapes of the round `wide`), `aligned` and `astray` (drawn
as `propose` draws, by an earlier form of it), and `chosen`, eight shapes on which `first` had shown much.
"""

import json
import lzma
import math
import random
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import msgspec
import numpy as np

from cudal2.problem import Problem, grid, off_lattice, parse
from cudal2.records import to_json
from cudal2.search import prior
from cudal2.search.known import shipped_settings
from cudal2.split import unseen

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
sys.path.insert(0, str(Path(__file__).parents[1] / "learning"))
from explored import FAMILIES, TARGET, Line
from first import interval

RECORD = Path(__file__).with_name("promotion.jsonl.xz")
KNOWN = 5
"""Known settings of each shape."""
ALIGNED = {(1, 1): 3, (2, 8): 5, (9, 16): 4, (17, 64): 5, (65, 255): 5, (256, 1024): 6, (1025, 8192): 7}
"""So many explored shapes with rows of whole lines, by rows; LARGE of the grid more."""
LARGE, FULL, WEIGHT = 4, 128, 1 << 21
"""How many large ones, what divides their K, and the smallest weight."""
ASTRAY = (8, 8, 8)
"""Sizes off the lattice with more than 64 rows and a K that is no multiple of 16, or is one; and with fewer rows."""
USUAL = "256"
BEFORE, SINCE = "wide", "lines"
ROUNDS = "fifth", "cover", "unaligned", "fresh", "doubted", "sizes", BEFORE, SINCE
"""Of exploring, with shapes whose rows begin within 64 bytes; the last asks for 128 bytes."""


class Promoted(Line, frozen=True, kw_only=True):
    """The same in one of the trials; to how many bytes the kernel's tensor maps promoted."""

    trial: str
    bytes: str


def propose(out: Path) -> None:
    rng = random.Random(3)
    known = [one for one in shipped_settings(TARGET) if not unseen(one)]
    aligned = [one for one in known if one.k % FULL == 0 and one.n * one.k >= WEIGHT]
    chosen = [
        one
        for (least, most), count in ALIGNED.items()
        for one in rng.sample([one for one in aligned if least <= one.m <= most], count)
    ]
    chosen += rng.sample([one for one in grid() if not unseen(one) and 1e11 < one.flop < 2e12], LARGE)
    sizes = [one for one in off_lattice(1000, 4001) if not unseen(one) and one.flop < 1e11]
    many, few = [one for one in sizes if one.m > 64], [one for one in sizes if one.m <= 64]
    parts = [one for one in many if one.k % 16], [one for one in many if not one.k % 16], few
    astray = [one for part, count in zip(parts, ASTRAY) for one in rng.sample(part, count)]
    out.mkdir(parents=True, exist_ok=True)
    for name, shapes in (("aligned", chosen), ("astray", astray)):
        wanted = defaultdict[str, list[str]](list)
        for problem in shapes:
            for setting in prior.known_settings(TARGET, problem, FAMILIES)[:KNOWN]:
                wanted[to_json(setting)].append(problem.mnk)
        lines = (json.dumps(json.loads(one) | {"shapes": where}) for one, where in wanted.items())
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        (out / f"{name}.txt").write_text(",".join(one.mnk for one in shapes))


def kind(problem: Problem) -> str:
    """By rows, and by where a row of K numbers begins: 64 of them are a line of 128 bytes, 16 a sector."""
    rows = next(
        (name for most, name in ((64, "1 to 64 rows"), (1024, "65 to 1,024 rows")) if problem.m <= most), "more"
    )
    begin = next(name for each, name in ((64, "lines"), (16, "sectors"), (1, "anywhere")) if problem.k % each == 0)
    return f"{begin}, {rows}{', beyond 5e10 FLOP' if problem.flop > 5e10 else ''}"


def main() -> None:
    """Of each trial and kind of shape how much faster the same kernels are, and how much less than their rival."""
    lines = msgspec.json.Decoder(Promoted).decode_lines(lzma.decompress(RECORD.read_bytes()))
    right = {
        (one.trial, one.bytes, one.problem, one.family, to_json(one.knobs)): one for one in lines if one.said == "ok"
    }
    found = defaultdict[tuple[str, str, str], dict[str, list[tuple[float, float]]]](lambda: defaultdict(list))
    for (trial, size, problem, *setting), one in right.items():
        if size != USUAL and (usual := right.get((trial, USUAL, problem, *setting))):
            pair = math.log(usual.us / one.us), math.log(one.speedup / usual.speedup)
            found[trial, kind(parse(problem)), size][problem].append(pair)
    print(f"{'trial':10s}{'rows begin at':44s}{'bytes':6s}shapes  times, 256 over these      speedups, these over 256")
    for (trial, name, size), of_shape in sorted(found.items()):
        both = np.array([[mean(column) for column in zip(*pairs)] for pairs in of_shape.values()])
        print(f"{trial:10s}{name:44s}{size:6s}{len(both):>6d}  {'     '.join(map(interval, both.T))}")
    explored()


def explored() -> None:
    """Of the shapes whose rows begin within 64 bytes: the same settings before and since (rounds of one day, on two
    machines), and the best of all that were ever explored, over the rough rival."""
    folder, speeds = RECORD.parent.parent / "layers", defaultdict[str, dict[tuple[str, str], float]](dict)
    for name in ROUNDS:
        with lzma.open(folder / f"{name}.jsonl.xz", "rt") as file:
            for line in map(json.loads, file):
                setting = line["family"] + to_json(line["knobs"])
                if line.get("speedup"):
                    speeds[name][line["problem"], setting] = line["speedup"]
    best = dict[bool, dict[str, float]]({True: {}, False: {}})
    for name, some in speeds.items():
        for (problem, _), speed in some.items():
            here = best[name == SINCE]
            here[problem] = max(here.get(problem, 0.0), speed)
    same = defaultdict[str, list[float]](list)
    for problem, setting in speeds[BEFORE].keys() & speeds[SINCE].keys():
        ratio = speeds[SINCE][problem, setting] / speeds[BEFORE][problem, setting]
        same[problem].append(math.log(ratio))
    shapes = defaultdict[str, list[str]](list)
    for problem in sorted(best[True].keys() & best[False].keys()):
        shapes[kind(parse(problem)).split(", beyond")[0]].append(problem)
    for name, some in sorted(shapes.items()):
        logs = np.log([[best[since][one] for since in (False, True)] for one in some])
        both = [mean(same[one]) for one in some if one in same]
        won = [int(count) for count in (logs > 0).sum(0)]
        print(f"\n{name}")
        print(f"  the same settings, since over before: {interval(np.array(both))}, {len(both)} shapes")
        before, since = (f"{interval(column)}, {count} won" for column, count in zip(logs.T, won))
        print(f"  the best, before: {before}; since: {since}; {len(some)} shapes")


if __name__ == "__main__":
    propose(Path(sys.argv[2])) if sys.argv[1:2] == ["propose"] else main()
