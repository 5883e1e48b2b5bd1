"""The best kernels of an evaluated run against auto-tuned cuBLASLt (its faster layout), by decade of work.

    python experiments/h200/speedups.py RUN [RUN ...] > experiments/h200/sample/speedups.txt

Reads what `cudal2 eval` wrote. A shape without a faster kernel counts 1.00, as the exported library falls back.
Intervals are 95% bootstrap intervals over the shapes, which are a stratified sample of the grid.
"""

import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cudal2.evaluation.records import Row
from cudal2.evaluation.results import load
from cudal2.evaluation.tables import MAX, against

RESAMPLES = 10_000


def against_tuned(row: Row, protocol: str) -> float:
    """Speedup over the faster layout of cublaslt-auto; below 1 where the kernel loses, 0 where there is none."""
    timing = against(row, MAX["cublaslt-auto"], protocol)
    return timing.speedup if timing else 0.0


def interval(speedups: list[float]) -> tuple[float, float, float]:
    """Geometric mean with the fall-back counted as 1.00, and its interval."""
    logs = np.log(np.maximum(speedups, 1.0))
    draws = np.random.default_rng(0).choice(logs, (RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return math.exp(logs.mean()), math.exp(low), math.exp(high)


def line(name: str, speedups: list[float]) -> str:
    mean, low, high = interval(speedups)
    won = sum(speedup > 1 for speedup in speedups) / len(speedups)
    right = [speedup for speedup in speedups if speedup]
    plain = math.exp(sum(map(math.log, right)) / len(right)) if right else math.nan
    return f"{name:<12} {len(speedups):>4}  {mean:.3f} [{low:.3f}, {high:.3f}]  {plain:>8.3f}  {won:>5.0%}"


def show(rows: list[Row], protocol: str) -> None:
    decades: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        decades[row.problem.decade].append(against_tuned(row, protocol))
    print(f"{protocol}: against auto-tuned cuBLASLt, the faster of two layouts\n")
    print("FLOP       shapes  with fall-back 1.00   without    won")
    for decade, speedups in sorted(decades.items()):
        print(line(f"1e{decade}-1e{decade + 1}", speedups))
    print(line("all", [speedup for speedups in decades.values() for speedup in speedups]) + "\n")


def main(folders: list[str]) -> None:
    rows = {row.problem: row for folder in folders for row in load(Path(folder)).rows}
    for protocol in dict.fromkeys(timing.protocol for row in rows.values() for timing in row.timings):
        show(list(rows.values()), protocol)
    print("problem                     µs  device                 offline")
    for problem, row in sorted(rows.items(), key=lambda item: item[0].flop):
        figures = "  ".join(f"{against_tuned(row, name):>6.3f}" for name in ("device", "offline"))
        print(f"{problem.mnk:<20} {row.timing.candidate_us if row.timing else 0:>9.2f}  {figures}")


if __name__ == "__main__":
    main(sys.argv[1:])
