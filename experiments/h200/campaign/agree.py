"""The same shapes on three machines: how far speedups agree, and what "lost counts as 1.00" owes to luck.

    python experiments/h200/campaign/agree.py [RUN/eval/results.csv]    # reads results.csv and earlier.csv here, too

Where one measurement both decides whether a kernel is lost and says how fast it is, noise around 1.00 counts upwards
only. So each figure stands beside one in which the other machine decides. With a CSV of a later evaluation, of the
export say, that one stands beside them.
"""

import csv
import math
import sys
from pathlib import Path
from statistics import median

from picture import HERE, Shape, read

EARLIER = {"second": "speedup", "first": "speedup_again"}
"""Columns of earlier.csv, by machine; the third machine's figures are those of results.csv."""


def geomean(values: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def kept(pairs: list[tuple[float, float]]) -> float:
    """Geometric mean of the first of each pair, 1.00 where the second says that it is lost."""
    return geomean([value if decides > 1 else 1.0 for value, decides in pairs])


def main() -> None:
    new = read()
    rows = list(csv.DictReader((HERE / "earlier.csv").open()))
    others = {f"the {machine} machine": column(rows, name) for machine, name in EARLIER.items()}
    others |= {path: read(Path(path)) for path in sys.argv[1:]}
    for name, found in others.items():
        pairs = [(new[shape], speedup) for shape, speedup in found.items()]
        ratios = [ours / theirs for ours, theirs in pairs]
        close = [sum(abs(ratio - 1) <= width for ratio in ratios) / len(ratios) for width in (0.01, 0.05)]
        print(f"{len(pairs)} shapes, the third machine beside {name}:")
        print(f"  lost as 1.00: {kept([(a, a) for a, _ in pairs]):.4f} and {kept([(b, b) for _, b in pairs]):.4f}")
        print(f"  where the other decides: {kept(pairs):.4f} and {kept([(b, a) for a, b in pairs]):.4f}")
        print(f"  ratio of a shape's two: median {median(ratios):.3f}, {min(ratios):.2f} to {max(ratios):.2f}", end="")
        print(f"; within 1%: {close[0]:.0%}, within 5%: {close[1]:.0%}")


def column(rows: list[dict[str, str]], name: str) -> dict[Shape, float]:
    """The figures of a column by (M, N, K), where it has any."""
    there = [(row["problem"].split("_"), row[name]) for row in rows if row[name]]
    return {(int(m), int(n), int(k)): float(value) for (m, n, k), value in there}


if __name__ == "__main__":
    main()
