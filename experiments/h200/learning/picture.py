"""What the policy for Hopper writes: GRPO step by step, and a hundred shapes that training never saw.

python experiments/h200/learning/picture.py        # reads and writes beside this file: gpu.png; prints a table
"""

import csv
import json
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

from cudal2.problem import parse
from cudal2.report import budget
from cudal2.report.budget import BLUE, FAINT, GREEN, INK, ORANGE, mean, save

HERE = Path(__file__).parent
SHIPPED = "what GRPO found"
RECENT = 6
"""Steps that the line averages."""
SIXTEEN = {SHIPPED: BLUE, "SFT": ORANGE, "random settings": GREEN}
"""Searched 16 kernels a shape, each without the others' knowledge."""
PAIRS = {16: ((SHIPPED, "SFT"), (SHIPPED, "random settings")), 64: ((SHIPPED, "evolution from known settings"),)}

Speeds = dict[str, dict[str, list[float]]]
"""By policy and problem, in the order in which they were judged; 0 for a failure."""


def read() -> Speeds:
    found: Speeds = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader((HERE / "samples.csv").open()):
        found[row["policy"]][row["problem"]].append(float(row["speedup"]))
    return found


def so_far(values: list[float], count: int) -> float:
    """The best of so many; what is lost counts as 1. A policy that repeats itself writes fewer that are distinct."""
    return max(budget.FALLBACK, *values[:count])


def against(found: Speeds, count: int, one: str, other: str) -> str:
    """A line of the table: best of `count` of each, on the shapes that both have finished, and shape by shape."""
    ours, theirs = (found[f"{name}, {count} a shape"] for name in (one, other))
    common = [name for name in theirs if name in ours and len(theirs[name]) >= count]
    best = [[so_far(policy[name], count) for name in common] for policy in (ours, theirs)]
    estimates = *map(budget.estimate, best), budget.estimate([a - b for a, b in zip(*best)])
    return f"| {other}, {count} | {len(common)} | " + " | ".join(map(str, estimates)) + " |"


def main() -> None:
    found = read()
    figure = Figure((14, 3.6), layout="constrained")
    learning, shapes, searches = figure.subplots(1, 3)
    for axes in (learning, shapes, searches):
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    speeds = [json.loads(line)["speedup_mean"] for line in (HERE / "grpo-5e-5.jsonl").open()]
    steps = range(1, len(speeds) + 1)
    learning.plot(steps, speeds, ".", color=BLUE, alpha=0.5, label="128 samples of a step")
    learning.plot(
        steps, [mean(speeds[max(0, n - RECENT) : n]) for n in steps], color=BLUE, label=f"last {RECENT} steps"
    )
    learning.set(xlabel="GRPO step", ylabel="mean speedup over tuned cuBLASLt", ylim=(0.8, 1.2))

    first, best = found[SHIPPED], found[f"{SHIPPED}, 16 a shape"]
    flop = [parse(name).flop for name in first]
    shapes.plot(flop, [mean(values) for values in first.values()], "o", color=ORANGE, label="first sample, mean of 3")
    shapes.plot(flop, [max(best[name]) for name in first], "_", color=BLUE, label="best of up to 16")
    shapes.set(xscale="log", xlabel="FLOP; 100 shapes kept from training", ylim=(0.25, 2.1))

    tried = {name: found[f"{name}, 16 a shape"] for name in SIXTEEN}
    common = [name for name, values in tried["random settings"].items() if len(values) >= 16 <= len(tried["SFT"][name])]
    for name, color in SIXTEEN.items():
        curve = [budget.estimate([so_far(tried[name][one], n) for one in common]) for n in range(1, 17)]
        means, lows, highs = zip(*curve)
        searches.fill_between(range(1, 17), lows, highs, color=color, alpha=0.15, linewidth=0)
        searches.plot(range(1, 17), means, color=color, label=name)
    searches.set(xlabel=f"kernels judged for each of {len(common)} of them", ylabel="best so far, at least 1.00")
    for axes in (learning, shapes, searches):
        axes.grid(color=FAINT, linewidth=0.5)
        axes.legend(frameon=False, fontsize=8)
    save(figure, HERE / "gpu.png")
    print("| beside | shapes | what ships | it | difference |\n|---|---|---|---|---|")
    for count, pairs in PAIRS.items():
        for pair in pairs:
            print(against(found, count, *pair))


main()
