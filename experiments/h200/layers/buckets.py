"""The speedups of a table of results by numbers of rows, with intervals over the layers.

    python experiments/h200/layers/buckets.py experiments/h200/layers/apart.csv

A layer's figure is its speedup over its fastest baseline by the GPU's clock; nothing is left out. Means are geometric,
with 95% intervals (layers drawn anew). `fallback`: a kernel that is slower counts as 1.00.
"""

import csv
import sys
from pathlib import Path

import numpy as np

BUCKETS = ((1, 16), (17, 64), (65, 1024), (1025, 16384), (1, 16384))


def fastest(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """The row over the fastest baseline of each problem."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in csv.DictReader(path.open()):
        problem = tuple(row[key] for key in ("m", "n", "k", "dtype", "epilogue"))
        before = found.get(problem)
        if row["protocol"] == "device" and (before is None or float(row["speedup"]) < float(before["speedup"])):
            found[problem] = row
    return found


def mean(logs: np.ndarray) -> str:
    drawn = np.random.default_rng(0).choice(logs, (4000, len(logs))).mean(axis=1)
    return "{:.3f} [{:.3f}, {:.3f}]".format(*np.exp([logs.mean(), *np.quantile(drawn, (0.025, 0.975))]))


def main(path: Path) -> None:
    rows = fastest(path)
    print("rows            layers  won  all                    fallback")
    for least, most in BUCKETS:
        logs = np.log([float(row["speedup"]) for row in rows.values() if least <= int(row["m"]) <= most])
        won = int((logs > 0).sum())
        print(f"{f'{least} to {most}':<14} {len(logs):>7} {won:>4}  {mean(logs)}   {mean(np.maximum(logs, 0))}")
    for problem, row in sorted(rows.items(), key=lambda item: float(item[1]["speedup"])):
        figures = f"{float(row['speedup']):.3f} [{float(row['low']):.3f}, {float(row['high']):.3f}]"
        print(f"  {'_'.join(problem):<32} {float(row['candidate_us']):9.2f} us  {figures}  {row['baseline']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
