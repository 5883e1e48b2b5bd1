"""What the policy for Hopper writes: GRPO step by step, and a hundred shapes that training never saw.

python experiments/h200/learning/picture.py        # reads and writes beside this file: gpu.png
"""

import csv
import json
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

from cudal2.problem import parse
from cudal2.report.figures import BLUE, FAINT, INK, ORANGE, mean, save

HERE = Path(__file__).parent
SHIPPED = "what GRPO found"
RECENT = 6
"""Steps that the line averages."""


def main() -> None:
    figure = Figure((10, 3.6), layout="constrained")
    learning, shapes = figure.subplots(1, 2)
    for axes in (learning, shapes):
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    speeds = [json.loads(line)["speedup_mean"] for line in (HERE / "grpo-5e-5.jsonl").open()]
    steps = range(1, len(speeds) + 1)
    learning.plot(steps, speeds, ".", color=BLUE, alpha=0.5, label="128 samples of a step")
    learning.plot(
        steps, [mean(speeds[max(0, n - RECENT) : n]) for n in steps], color=BLUE, label=f"last {RECENT} steps"
    )
    learning.set(xlabel="GRPO step", ylabel="mean speedup over tuned cuBLASLt", ylim=(0.8, 1.2))

    first, best = defaultdict(list), defaultdict(list)
    for row in csv.DictReader((HERE / "samples.csv").open()):
        if row["policy"] == SHIPPED:
            first[row["problem"]].append(float(row["speedup"]))
        elif row["policy"] == f"{SHIPPED}, 16 a shape":
            best[row["problem"]].append(float(row["speedup"]))
    flop = [parse(name).flop for name in first]
    shapes.plot(flop, [mean(values) for values in first.values()], "o", color=ORANGE, label="first sample, mean of 3")
    shapes.plot(flop, [max(best[name]) for name in first], "_", color=BLUE, label="best of up to 16")
    shapes.set(xscale="log", xlabel="FLOP; 100 shapes kept from training", ylim=(0.25, 2.1))
    for axes in (learning, shapes):
        axes.grid(color=FAINT, linewidth=0.5)
        axes.legend(frameon=False, fontsize=8)
    save(figure, HERE / "gpu.png")


main()
