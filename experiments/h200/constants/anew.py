"""What a model of few rows is worth by what it has learnt: the round `emptied`, what was known before it, or both.

    python experiments/h200/constants/anew.py     # five minutes, with scikit-learn

A third of the weights is kept out, three times: the first pick over the fastest that the round measured, in the mean.
"""

import random
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
import labeller
from labeller import EMPTIED, FEW, Measured, Model, explored, measured, on_the_grid, shown

LAYERS = Path(__file__).parents[1] / "layers"
MORE = 20
"""Shapes of more rows, which a model must have too."""


def before() -> Measured:
    """What the rounds before say."""
    every = labeller.ROUNDS
    labeller.ROUNDS = tuple(name for name in every if name != EMPTIED)
    try:
        return shown(measured(LAYERS))
    finally:
        labeller.ROUNDS = every


def main() -> None:
    every, grid = shown(measured(LAYERS)), shown(on_the_grid())
    names = {line.problem for line in explored(LAYERS, EMPTIED)}
    anew = {problem: some for problem, some in every.items() if problem.mnk in names}
    more = dict([(problem, some) for problem, some in every.items() if problem.m > FEW][:MORE])
    ways = {"before": grid | before(), "the round alone": anew, "both": grid | every}
    weights = sorted({(one.n, one.k) for one in anew})
    random.Random(1).shuffle(weights)
    picks = defaultdict[str, list[float]](list)
    for third in range(3):
        apart = set(weights[third::3])
        asked = {problem: some for problem, some in anew.items() if (problem.n, problem.k) in apart}
        for way, seen in ways.items():
            few = {one: some for one, some in seen.items() if one.m <= FEW and (one.n, one.k) not in apart}
            model = Model(few | more)
            speeds = model.speeds([(problem, model.pool(some)) for problem, some in asked.items()])
            picks[way] += [list(some.values())[int(np.argmax(liked))] for some, liked in zip(asked.values(), speeds)]
    for way, some in picks.items():
        print(f"{way:16s} {len(some)} shapes  {np.exp(np.mean(some)):.3f}")


if __name__ == "__main__":
    main()
