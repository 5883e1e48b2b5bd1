"""The campaign's kernels by the judge before and the judge now: verdicts, and the ratio of the two figures by work.

    python experiments/h200/judge/compare.py runs/rejudge/eval/results.csv    # beside the campaign's results.csv

A shape's figure is its speedup over the fastest of eight baselines by the GPU's clock. Intervals are of 95%, by a
bootstrap over shapes. `kernel` compares the kernels' own microseconds: another machine's clocks are in it.
"""

import csv
import sys
from collections import Counter
from pathlib import Path

import numpy as np

BEFORE = Path(__file__).parents[1] / "campaign" / "results.csv"
Shape = tuple[int, int, int]


def rows(path: Path) -> dict[Shape, dict[str, str]]:
    """The row over the fastest baseline of each shape; of a kernel that is not ok the only one."""
    found: dict[Shape, dict[str, str]] = {}
    for row in csv.DictReader(path.open()):
        shape = int(row["m"]), int(row["n"]), int(row["k"])
        if row["protocol"] in ("", "device") and (
            shape not in found or float(row["speedup"] or 0) < float(found[shape]["speedup"] or 0)
        ):
            found[shape] = row
    return found


def interval(logs: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean of ratios, and its interval."""
    drawn = np.random.default_rng(0).choice(logs, (2000, len(logs))).mean(axis=1)
    return tuple(np.exp([logs.mean(), *np.quantile(drawn, (0.025, 0.975))]))


def main() -> None:
    before, now = rows(BEFORE), rows(Path(sys.argv[1]))
    print(len(now), "kernels judged:", dict(Counter(row["status"] for row in now.values())))
    both = [shape for shape in now if shape in before and now[shape]["status"] == before[shape]["status"] == "ok"]
    for name, first in (("raw", 0.0), ("lost as 1.00", 1.0)):
        figures = [
            interval(np.log([max(first, float(table[shape]["speedup"])) for shape in both])) for table in (before, now)
        ]
        print(
            f"geometric mean of {len(both)}, {name}: "
            + ", ".join("{:.4f} [{:.4f}, {:.4f}]".format(*one) for one in figures)
        )
    print("\n| FLOP | shapes | now / before | p5 to p95 | kernel: now / before |\n| --- | --- | --- | --- | --- |")
    decade = {shape: int(np.log10(2.0 * shape[0] * shape[1] * shape[2])) for shape in both}
    for power in [*sorted(set(decade.values())), None]:
        chosen = [shape for shape in both if power in (None, decade[shape])]
        ratios, own = (
            np.log([float(now[shape][key]) / float(before[shape][key]) for shape in chosen])
            for key in ("speedup", "candidate_us")
        )
        mean, low, high = interval(ratios)
        spread = np.exp(np.quantile(ratios, (0.05, 0.95)))
        name = f"1e{power}–1e{power + 1}" if power else "all"
        print(
            f"| {name} | {len(chosen)} | {mean:.4f} [{low:.4f}, {high:.4f}] | {spread[0]:.3f} to {spread[1]:.3f} "
            f"| {interval(own)[0]:.4f} |"
        )
    moved = sorted(both, key=lambda shape: float(now[shape]["speedup"]) / float(before[shape]["speedup"]))
    print("\nfurthest apart:")
    for shape in (*moved[:6], *moved[-6:]):
        print("  {}_{}_{}".format(*shape), *(f"{float(table[shape]['speedup']):.3f}" for table in (before, now)))


if __name__ == "__main__":
    main()
