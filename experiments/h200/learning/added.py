"""What GRPO added: what the policies wrote for the same shapes, before and after, shape by shape.

    python experiments/h200/learning/added.py    # reads samples.csv

Three samples a shape. Failures count as 0 in a first sample; of the best of three, what is lost counts as 1. Intervals
are of 95%, over shapes.
"""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

BEFORE = "known settings"
AFTER = {"and GRPO": "in the run itself", "what GRPO found": "in what ships"}


def main() -> None:
    speeds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader((Path(__file__).parent / "samples.csv").open()):
        speeds[row["policy"]][row["problem"]].append(float(row["speedup"] or 0) if row["status"] == "ok" else 0.0)
    for name, label in AFTER.items():
        shapes = sorted(set(speeds[name]) & set(speeds[BEFORE]))
        for value, of in ((np.mean, "a first sample"), (lambda some: max(1.0, *some), "the best of three")):
            gain = np.array([value(speeds[name][shape]) - value(speeds[BEFORE][shape]) for shape in shapes])
            drawn = np.random.default_rng(0).choice(gain, (10_000, len(gain))).mean(axis=1)
            low, high = np.quantile(drawn, (0.025, 0.975))
            print(f"{label}, {of}: {gain.mean():.3f} [{low:.3f}, {high:.3f}] of {len(shapes)} shapes")
    first = speeds["random settings"]
    print(f"random settings: {np.mean([one for some in first.values() for one in some]):.3f} of {len(first)} shapes")


if __name__ == "__main__":
    main()
