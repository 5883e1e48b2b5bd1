"""What the kernels that are surely faster on one machine are on another: two evaluations of the same kernels.

    cd experiments/h200/campaign && python elsewhere.py second.csv.xz third.csv.xz

The first lines are of all shapes that both have; the others of those for which both chose the same kernel. They take
what the interval of one machine says, then what an export dispatches (`surely_faster`), and ask the other machine; then
come the logarithms of the second figure over the first, by how long the baseline takes.
"""

import math
import statistics
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from shares import MUCH_FLOP, Shape, fastest, mean

from cudal2.evaluation.records import surely_faster
from cudal2.records import Timing

LEAST = 0.99
BANDS = (0, 3, 10, 30, 100, 300, 1000, math.inf)
"""Microseconds."""


def timings(path: Path) -> dict[Shape, tuple[str, Timing]]:
    """The kernel of each shape, and its time beside the fastest baseline."""
    found = {}
    for shape, row in fastest(path).items():
        figures = [float(row[name]) for name in ("candidate_us", "baseline_us", "speedup", "low", "high")]
        timing = Timing(row["baseline"], "device", *figures, int(row["pairs"]), 1, confidence=float(row["confidence"]))
        found[shape] = row["kernel"], timing
    return found


def show(name: str, here: Mapping[Shape, Timing], there: Mapping[Shape, Timing], chosen: list[Shape]) -> None:
    lost = sorted((there[shape].speedup, here[shape].speedup, shape) for shape in chosen)
    named = [f"{'x'.join(map(str, shape))} {own:.3f} and {other:.3f}" for other, own, shape in lost if other < LEAST]
    here_log, there_log = ([math.log(some[shape].speedup) for shape in chosen] for some in (here, there))
    means = f"{math.exp(statistics.mean(here_log)):.3f} and {math.exp(statistics.mean(there_log)):.3f}"
    print(f"{name}: {len(chosen)} kernels, {means} elsewhere; below {LEAST} elsewhere: {'; '.join(named) or 'none'}")


def main(one: Path, other: Path) -> None:
    first, second = timings(one), timings(other)
    both = [shape for shape in first if shape in second]
    for name, least in (("all", 0.0), (f"from {MUCH_FLOP:.0e} FLOP on", MUCH_FLOP)):
        some = [shape for shape in both if 2 * math.prod(shape) >= least]
        here, there = (np.log([found[shape][1].speedup for shape in some]) for found in (first, second))
        print(f"{name}: {len(some)} shapes, {mean(here)}, then {mean(there)}; ratio {mean(there - here)}")
    same = [shape for shape in both if first[shape][0] == second[shape][0]]
    print(f"{len(same)} shapes with the same kernel")
    sides = [{shape: found[shape][1] for shape in same} for found in (first, second)]
    for name, sure in (("interval above 1", lambda timing: timing.low > 1), ("dispatched", surely_faster)):
        for here, there in (sides, sides[::-1]):
            show(name, here, there, [shape for shape in same if sure(here[shape])])
    for least, most in pairwise(BANDS):
        some = [shape for shape in same if least <= sides[0][shape].baseline_us < most]
        apart = [math.log(sides[1][shape].speedup / sides[0][shape].speedup) for shape in some]
        wide = statistics.mean(math.log(sides[0][shape].high / sides[0][shape].low) for shape in some)
        spread = f"mean {statistics.mean(apart):.4f}, standard deviation {statistics.stdev(apart):.4f}"
        print(f"{least} to {most} us: {len(some)} kernels, {spread}; an interval is {wide:.4f} wide")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
