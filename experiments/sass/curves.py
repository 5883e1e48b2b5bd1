"""What the best edit of each search was worth after so many measurements.

    python experiments/sass/curves.py read games/runs > curves.csv
    python experiments/sass/curves.py draw curves.csv curves.png

`read` takes what `games.py play` wrote. A row for each game, search and number of measurements: the speedup of the edit
with the greatest lower bound so far as the search itself measured it, how many edits had been wrong, and the seconds of
measuring. Only what is measured again afterwards says how fast a winner is (`games.py`). `draw` shows the mean over the
games, as far as a search has come in all of them.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from cudal2.records import Status
from cudal2.tracking import read_metrics

AT = (10, 20, 50, 100, 200, 500, 1000, 2000)
FIELDS = ("game", "method", "measurements", "speedup", "wrong", "seconds")


def rows(metrics: Path) -> Iterator[tuple[object, ...]]:
    """The rows of one search, by its metrics.jsonl."""
    wrong, seconds = 0, 0.0
    for number, row in enumerate(read_metrics(metrics), 1):
        wrong += row["status"] != Status.OK
        seconds += row["measuring"]
        if number in AT:
            game, method = metrics.parts[-3:-1]
            yield game, method, number, round(row["best"], 4), wrong, round(seconds, 1)


def draw(table: Path, picture: Path) -> None:
    import matplotlib.pyplot as plt

    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            found[row["method"]][int(row["measurements"])].append(float(row["speedup"]))
    games = max(len(at[AT[0]]) for at in found.values())
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for method, at in sorted(found.items()):
        whole = {count: fmean(speeds) for count, speeds in sorted(at.items()) if len(speeds) == games}
        axes.plot(list(whole), list(whole.values()), marker="o", markersize=3, label=method)
    axes.set(xscale="log", xlabel="measurements", ylabel=f"best so far, mean of {games} kernels")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.legend()
    figure.savefig(picture, dpi=120)


def main() -> None:
    if sys.argv[1] == "draw":
        draw(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(FIELDS)
    for metrics in sorted(Path(sys.argv[2]).glob("*/*/metrics.jsonl")):
        out.writerows(rows(metrics))


if __name__ == "__main__":
    main()
