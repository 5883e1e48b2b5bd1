"""The same shapes on three machines: how far speedups agree, and what "lost counts as 1.00" owes to luck.

    python experiments/h200/campaign/agree.py      # reads results.csv and earlier.csv beside this file

Where one measurement both decides whether a kernel is lost and says how fast it is, noise around 1.00 counts upwards
only. So each figure stands beside one in which the other machine decides.
"""

import csv
import math
from statistics import median

from picture import HERE, read

EARLIER = {"second": "speedup", "first": "speedup_again"}
"""Columns of earlier.csv, by machine; the third machine's figures are those of results.csv."""


def geomean(values: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def kept(pairs: list[tuple[float, float]]) -> float:
    """Geometric mean of the first of each pair, 1.00 where the second says that it is lost."""
    return geomean([value if decides > 1 else 1.0 for value, decides in pairs])


def main() -> None:
    new = {f"{m}_{n}_{k}": speedup for (m, n, k), speedup in read().items()}
    earlier = list(csv.DictReader((HERE / "earlier.csv").open()))
    for machine, column in EARLIER.items():
        pairs = [(new[row["problem"]], float(row[column])) for row in earlier if row[column]]
        ratios = [ours / theirs for ours, theirs in pairs]
        close = [sum(abs(ratio - 1) <= width for ratio in ratios) / len(ratios) for width in (0.01, 0.05)]
        print(f"{len(pairs)} shapes, the third machine beside the {machine}:")
        print(f"  lost as 1.00: {kept([(a, a) for a, _ in pairs]):.4f} and {kept([(b, b) for _, b in pairs]):.4f}")
        print(f"  where the other decides: {kept(pairs):.4f} and {kept([(b, a) for a, b in pairs]):.4f}")
        print(f"  ratio of a shape's two: median {median(ratios):.3f}, {min(ratios):.2f} to {max(ratios):.2f}", end="")
        print(f"; within 1%: {close[0]:.0%}, within 5%: {close[1]:.0%}")


if __name__ == "__main__":
    main()
