"""What first picks lose on shapes whose weight is kept apart: the look-up's order, intervals, and tables by rows."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from explored import FAMILIES, TARGET

from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search import prior
from cudal2.search.known import shipped_settings

ROWS = ((1, 16), (17, 64), (65, 1024), (1025, 16384), (1, 16384))
Weight = tuple[int, int]


def looked_up(problem: Problem, apart: Collection[Weight] = ()) -> list[str]:
    """The settings of the look-up without the lines of these weights; as JSON."""
    stored = shipped_settings(TARGET)
    own = {one: stored.pop(one) for one in list(stored) if (one.n, one.k) in apart}
    found = [to_json(setting) for setting in prior.known_settings(TARGET, problem, FAMILIES)]
    stored.update(own)
    return found


def interval(values: np.ndarray, weights: np.ndarray, as_shown: Callable[[float], float] = math.exp) -> str:
    """The mean over shapes; the weights that they are of are drawn anew."""
    _, of = np.unique(weights, return_inverse=True)
    sums, counts = np.bincount(of, values), np.bincount(of)
    drawn = np.random.default_rng(0).integers(0, len(sums), (4000, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), [2.5, 97.5])
    return "{:.3f} [{:.3f}, {:.3f}]".format(*map(as_shown, (values.mean(), low, high))).ljust(24)


def show(
    shapes: Sequence[Problem],
    table: Mapping[str, np.ndarray],
    differences: Sequence[tuple[str, str, str]],
    picks: Sequence[int],
) -> None:
    """What the first picks of each name lose (shapes × picks), by rows; then differences, each of two names."""
    owner = np.array([one.n * 10**6 + one.k for one in shapes])
    for least, most in ROWS:
        here = np.array([least <= one.m <= most for one in shapes])
        if not here.any():
            continue
        print(f"\n{least} to {most} rows: {here.sum()} shapes" + "".join(f"{f'{count} picks':>24s}" for count in picks))
        for name, some in table.items():
            print(f"{name:20s}" + "".join(interval(column, owner[here]) for column in some[here].T))
        for name, one, other in differences:
            less = (table[one] - table[other])[here]
            print(f"{name:20s}" + "".join(interval(column, owner[here], float) for column in less.T))
