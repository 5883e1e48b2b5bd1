"""What the best edit of each search was worth after so many measurements.

    python experiments/sass/curves.py games/runs > curves.csv

Reads what `games.py play` wrote. A row for each game, search and number of measurements: the speedup of the edit with
the greatest lower bound so far as the search itself measured it, how many edits had been wrong, and the seconds of
measuring. Only what is measured again afterwards says how fast a winner is (`games.py`).
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from cudal2.records import Status
from cudal2.tracking.metrics import read_metrics

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


def main() -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(FIELDS)
    for metrics in sorted(Path(sys.argv[1]).glob("*/*/metrics.jsonl")):
        out.writerows(rows(metrics))


if __name__ == "__main__":
    main()
