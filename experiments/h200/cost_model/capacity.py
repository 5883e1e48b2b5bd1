"""How many trees the labeller needs, and of what kind: its first pick, and the best of four, on shapes whose weights it
never saw.

    python experiments/h200/cost_model/capacity.py experiments/h200/layers > experiments/h200/cost_model/capacity.txt

A third of the weights is kept out. Shapes with fewer than LEAST measured settings are left out. Over the fastest that
was measured there; seconds of a fit, two cores. It takes ten minutes.
"""

import random
import sys
import time
from pathlib import Path

import numpy as np
from labeller import Measured, Model, measured, most_liked_first, on_the_grid, shown

from cudal2.cost_model.model import FEW

LEAST = 8
FITS = (
    (2, 200, 24, 0.1, 20),
    (1, 800, 32, 0.1, 20),
    (1, 1600, 32, 0.1, 20),
    (1, 800, 32, 0.2, 20),
    (1, 800, 32, 0.3, 20),
    (1, 800, 32, 0.1, 60),
    (1, 800, 32, 0.2, 60),
)
"""Fits whose mean is the model, trees of each, leaves of a tree at most, the rate of learning, and pairs in a leaf at
least; the first are those of 30 November, the second of 1 December."""


def picked(model: Model, test: Measured) -> np.ndarray:
    """[shapes, 3]: rows, and how far behind the fastest the first pick is, and the best of four."""
    found = []
    speeds = model.speeds([(problem, model.pool(some)) for problem, some in test.items()])
    for (problem, some), guessed in zip(test.items(), speeds):
        in_order = most_liked_first(some, guessed)
        found.append((problem.m, in_order[0], in_order[:4].max()))
    return np.array(found)


def main(folder: Path) -> None:
    every = shown(on_the_grid() | measured(folder))
    weights = sorted({(problem.n, problem.k) for problem in every})
    random.Random("third").shuffle(weights)
    apart = set(weights[::3])
    seen = {problem: some for problem, some in every.items() if (problem.n, problem.k) not in apart}
    test = {p: some for p, some in every.items() if (p.n, p.k) in apart and len(some) >= LEAST}
    print(f"{len(seen)} shapes seen, {len(test)} not")
    for fits, trees, leaves, rate, leaf in FITS:
        begun = time.time()
        rows, *behind = picked(Model(seen, fits, trees, leaves, rate, leaf), test).T
        few, said = rows <= FEW, []
        for here in (few, ~few, few | ~few):
            said.append(", ".join(f"{np.exp(one[here].mean()):.4f}" for one in behind))
        print(f"{fits} x {trees} trees of {leaves}, rate {rate}, {leaf} in a leaf: ", end="")
        print(f"few rows {said[0]}; more {said[1]}; all {said[2]}", end="")
        print(f"  ({time.time() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
