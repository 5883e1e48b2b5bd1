"""Runs of training side by side, a line for each."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cudal2.records import Status
from cudal2.report import steps


def table(folders: Sequence[Path]) -> str:
    """In Markdown: steps, kernels, mean speedup and mean reward in the first and the last third of the steps, and the
    share of correct kernels in them. Raises ValueError for a run without training samples, and where they were measured
    in environments that do not compare.
    """
    lines = [["run", "steps", "kernels", "mean speedup, first → last third", "mean reward", "correct"]]
    lines.append(["---"] * len(lines[0]))
    for name, run in steps.curves(folders).items():
        pairs = []
        for values in ("speedups", "rewards"):
            first, last = (
                steps.mean([value for step in part for value in getattr(step, values)]) for part in steps.thirds(run)
            )
            pairs.append(f"{first:.2f} → {last:.2f}")
        shares = []
        for part in steps.thirds(run):
            total = sum((step.statuses for step in part), Counter())
            shares.append(f"{total[Status.OK] / max(total.total(), 1):.0%}")
        kernels = sum(step.statuses.total() for step in run)
        lines.append([name, str(len(run)), str(kernels), *pairs, " → ".join(shares)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
