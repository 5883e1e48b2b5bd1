"""Where the speed of a table of results lies: in short calls or long ones, in the mean or in the sum of all times.

    python experiments/h200/campaign/shares.py experiments/h200/campaign/results.csv      # or .csv.xz
    python experiments/h200/campaign/shares.py NEW.csv EARLIER.csv      # each shape beside itself, by decade of work

A shape's figure is its speedup over its fastest baseline by the GPU's clock. Means are geometric, with 95% intervals
(shapes drawn anew). The gain of a shape is the logarithm of its speedup, 0 where the kernel is lost, for torch serves
it. The sum of times has every kernel once, also those that are lost.
"""

import csv
import lzma
import math
import sys
from pathlib import Path

import numpy as np

from cudal2.problem import GRID_SIZES, Problem, sample
from cudal2.split import REPORTED, unseen

SHORT_US, MUCH_FLOP = 30.0, 1e11
ROWS = ((1, 16), (17, 64), (65, 1024), (1025, 16384))
Shape = tuple[int, int, int]


def fastest(path: Path) -> dict[Shape, dict[str, str]]:
    """The row over the fastest baseline of each shape."""
    found: dict[Shape, dict[str, str]] = {}
    stored = path.read_bytes()
    text = (lzma.decompress(stored) if path.suffix == ".xz" else stored).decode()
    for row in csv.DictReader(text.splitlines()):
        shape = int(row["m"]), int(row["n"]), int(row["k"])
        if row["protocol"] == "device" and (
            shape not in found or float(row["speedup"]) < float(found[shape]["speedup"])
        ):
            found[shape] = row
    return found


def mean(logs: np.ndarray) -> str:
    drawn = np.random.default_rng(0).choice(logs, (2000, len(logs))).mean(axis=1)
    return "{:.3f} [{:.3f}, {:.3f}]".format(*np.exp([logs.mean(), *np.quantile(drawn, (0.025, 0.975))]))


def show(name: str, table: dict[Shape, dict[str, str]], shapes: list[Shape]) -> None:
    if not shapes:
        return
    speedups = np.array([float(table[shape]["speedup"]) for shape in shapes])
    ours = np.array([float(table[shape]["candidate_us"]) for shape in shapes])
    vendor, logs = ours * speedups, np.log(speedups)
    gain = np.maximum(logs, 0)
    print(f"{name}: {len(shapes)} shapes, {np.mean(speedups > 1):.1%} won")
    print(f"  mean, nothing left out {mean(logs)}, lost as 1.00 {mean(gain)}")
    share = gain[vendor < SHORT_US].sum() / gain.sum()
    print(
        f"  gain in calls whose baseline takes less than {SHORT_US:g} us: {share:.1%} ({sum(vendor < SHORT_US)} shapes)"
    )
    print(f"  sum of times over the sum of the fastest baselines': {ours.sum() / vendor.sum():.3f}")
    work = np.array([2 * math.prod(shape) for shape in shapes])
    if any(work >= MUCH_FLOP):
        print(f"  from {MUCH_FLOP:.0e} FLOP on, nothing left out: {mean(logs[work >= MUCH_FLOP])}")


def beside(table: dict[Shape, dict[str, str]], earlier: dict[Shape, dict[str, str]], shapes: list[Shape]) -> None:
    """Both tables' means over the shapes of each decade, of those that training may see and of the others."""
    logs = {shape: [math.log(float(one[shape]["speedup"])) for one in (table, earlier)] for shape in shapes}
    for name, chosen in (("that training may see", False), ("that it may not", True)):
        here = [shape for shape in shapes if unseen(Problem(*shape)) is chosen]
        for decade in [None, *range(5, 13)]:
            some = [one for one in here if decade is None or int(math.log10(2 * math.prod(one))) == decade]
            if some:
                new, old = np.array([logs[one] for one in some]).T
                title = "all" if decade is None else f"10^{decade} FLOP"
                print(f"shapes {name}, {title}: {len(some)}: {mean(new)}, earlier {mean(old)}, ratio {mean(new - old)}")


def main(path: Path, earlier: Path | None = None) -> None:
    table = fastest(path)
    if earlier:
        before = fastest(earlier)
        beside(table, before, [shape for shape in table if shape in before])
        return
    grid = [shape for shape in table if set(shape) <= set(GRID_SIZES)]
    show("all", table, list(table))
    show("the grid", table, grid)
    kept = {(one.m, one.n, one.k) for one in sample(*REPORTED)}
    show("the hundred whose speeds training never saw", table, [shape for shape in grid if shape in kept])
    for least, most in ROWS:
        show(f"{least} to {most} rows", table, [shape for shape in table if least <= shape[0] <= most])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
