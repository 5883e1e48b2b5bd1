"""The campaign at a glance: every shape of the grid, and the speedups by work.

python experiments/h200/campaign/picture.py        # reads results.csv beside this file, writes campaign.png
"""

import csv
import math
from collections import defaultdict
from pathlib import Path

from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from cudal2.problem import GRID_SIZES
from cudal2.report.budget import FAINT, INK, save

HERE = Path(__file__).parent
LOWEST, HIGHEST = 0.8, 1.5
"""Where the colours end."""
Shape = tuple[int, int, int]


def read(path: Path = HERE / "results.csv") -> dict[Shape, float]:
    """Speedup over the fastest of the eight baselines by (M, N, K)."""
    found: dict[Shape, list[tuple[float, float]]] = defaultdict(list)
    for row in csv.DictReader(path.open()):
        if row["protocol"] == "device":
            shape = int(row["m"]), int(row["n"]), int(row["k"])
            found[shape].append((float(row["baseline_us"]), float(row["speedup"])))
    return {shape: min(pairs)[1] for shape, pairs in found.items()}


def main() -> None:
    found = read()
    figure = Figure((12, 8), layout="constrained")
    maps, below = figure.subfigures(2, 1, height_ratios=(2.1, 1))
    norm, image = TwoSlopeNorm(1, LOWEST, HIGHEST), None
    for axes, k in zip(maps.subplots(2, 5, sharex=True, sharey=True).flat, GRID_SIZES):
        values = [[found.get((m, n, k), math.nan) for n in GRID_SIZES] for m in GRID_SIZES]
        image = axes.imshow(values, cmap="RdBu", norm=norm, origin="lower")
        axes.set_title(f"K = {k}", fontsize=9)
        axes.set_xticks(range(len(GRID_SIZES)), [str(n) for n in GRID_SIZES], fontsize=7, rotation=60)
        axes.set_yticks(range(len(GRID_SIZES)), [str(m) for m in GRID_SIZES], fontsize=7)
    maps.supxlabel("N", fontsize=9)
    maps.supylabel("M", fontsize=9)
    maps.colorbar(image, ax=maps.axes, shrink=0.8, aspect=25, label="speedup over the fastest baseline")
    work = below.subplots(1, 1)
    flop = [2.0 * m * n * k for m, n, k in found]
    work.scatter(
        flop, found.values(), s=7, c=list(found.values()), cmap="RdBu", norm=norm, edgecolors=FAINT, linewidths=0.3
    )
    work.axhline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    decades: dict[int, list[float]] = defaultdict(list)
    for one, speedup in zip(flop, found.values()):
        decades[int(math.log10(one))].append(math.log(speedup))
    for decade, logs in decades.items():
        mean = math.exp(sum(logs) / len(logs))
        work.plot([10.0**decade, 10.0 ** (decade + 1)], [mean, mean], color=INK, linewidth=2)
        work.annotate(f"{mean:.2f}", (10 ** (decade + 0.5), mean), (0, 5), textcoords="offset points", ha="center")
    work.set_xscale("log")
    work.set_xlabel("FLOP of a product; lines: geometric means of a decade")
    work.set_ylabel("speedup")
    save(figure, HERE / "campaign.png")


if __name__ == "__main__":
    main()
