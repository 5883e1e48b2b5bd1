"""The first cost model: boosted trees fitted to what recorded.py reads, by the logarithm of the speedups.

What they read is what an expert works out of a shape and a setting: tiles, waves, how full the last one is, traffic,
and the knobs as they are. What ships is cost_model/labeller.py's, which has seen more and ranks better.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from cudal2 import arch, operators
from cudal2.cost_model.facts import AUTO
from cudal2.search.proposer import Setting

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from recorded import Row


class Model(msgspec.Struct, frozen=True):
    """What was fitted. `codes` numbers the values of each knob that is no size."""

    predict: Callable[[np.ndarray], np.ndarray]
    codes: dict[str, dict[str, int]]
    multiprocessors: int

    def speeds(self, rows: Sequence[Row]) -> np.ndarray:
        """The logarithm of each row's speedup, as predicted."""
        return self.predict(table(rows, self.codes, self.multiprocessors)) if rows else np.zeros(0)


def fit(rows: Sequence[Row], multiprocessors: int) -> Model:
    """A model of these rows."""
    codes = numbered(rows)
    made = table(rows, codes, multiprocessors)
    trees = HistGradientBoostingRegressor(
        max_iter=300,
        learning_rate=0.06,
        max_leaf_nodes=15,
        min_samples_leaf=10,
        l2_regularization=1.0,
        categorical_features=list(range(made.shape[1] - len(codes), made.shape[1])),
        early_stopping=False,
        random_state=0,
    )
    trees.fit(made, np.array([row.speed for row in rows]))
    return Model(trees.predict, codes, multiprocessors)


def table(rows: Iterable[Row], codes: dict[str, dict[str, int]], multiprocessors: int) -> np.ndarray:
    """A line for each row: what `facts` says, then the knobs that are no numbers (nan: not that family's, or new)."""
    lines = []
    for row in rows:
        found = words(row.setting)
        named = [codes[name].get(found.get(name, ""), math.nan) for name in codes]
        lines.append([*facts(row, multiprocessors).values(), *named])
    return np.array(lines, dtype=float)


def numbered(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """A number for each value of each knob that is no size; the family is one of them."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for name, value in words(row.setting).items():
            values.setdefault(name, set()).add(value)
    return {name: {value: code for code, value in enumerate(sorted(found))} for name, found in sorted(values.items())}


def words(setting: Setting) -> dict[str, str]:
    """The family and the knobs that are no sizes; a style does not change the speed."""
    knobs = {name: str(value) for name, value in setting.knobs.items() if name not in (*SIZES, "style")}
    return {"family": setting.family} | knobs


SIZES = ("tile_m", "tile_n", "bm", "bn", "step", "bk", "stages", "depth", "splits", "warps", "blocks", "consumers")
"""Knobs that `facts` reads as numbers."""


def facts(row: Row, multiprocessors: int) -> dict[str, float]:
    """What an expert works out. Logarithms to the base 2, so that twice as much is one more; times are ratios to the
    time that the device's peak rates would take."""
    problem, knobs = row.problem, row.setting.knobs
    m, n, k = problem.m, problem.n, problem.k
    roof = arch.stated_roof(row.device)
    assert roof is not None, row.device

    def size(*names: str, default: float = math.nan) -> float:
        return next((float(knobs[name]) for name in names if isinstance(knobs.get(name), int)), default)

    tile_m, tile_n = size("tile_m", "bm", default=64), size("tile_n", "bn", default=64)
    step, stages, blocks = size("step", "bk", default=64), size("stages", "depth"), size("blocks", default=1)
    groups = size("warps_m", default=1) * size("warps_n", default=1)
    warps = size("warps", default=groups if "warps_m" in knobs else 4 * size("consumers", default=1))
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n)
    auto = knobs.get("splits") == "auto"
    splits = max(1, min(AUTO, multiprocessors // tiles)) if auto else size("splits", default=1)
    waves = tiles * splits / (multiprocessors * blocks)
    steps = math.ceil(k / (splits * step))
    compute, memory = operators.flop(problem) / roof.flops, operators.nbytes(problem) / roof.bandwidth
    # Of the multiprocessor with the most work, if all of them together reach the peak rate.
    busy = math.ceil(waves) * blocks * tile_m * tile_n * steps * step * 2 * multiprocessors / roof.flops
    log = math.log2
    return {
        "m": log(m),
        "n": log(n),
        "k": log(k),
        "c": log(m * n),
        "floor": log(max(compute, memory)),
        "intensity": log(compute / memory),
        "tile_m": log(tile_m),
        "tile_n": log(tile_n),
        "tile": log(tile_m * tile_n),
        "aspect": log(tile_m / tile_n),
        "step": log(step),
        "stages": stages,
        "ring": log((tile_m + tile_n) * step * (stages if stages > 0 else 4)),
        "blocks": blocks,
        "warps": log(warps),
        "share": log(tile_m * tile_n / warps),
        "splits": log(splits),
        "auto": float(auto),
        "tiles": log(tiles),
        "waves": log(waves),
        "rounds": math.ceil(waves),
        "filled": waves / math.ceil(waves),
        "steps": log(steps),
        "padding": log(math.ceil(m / tile_m) * tile_m * math.ceil(n / tile_n) * tile_n / (m * n)),
        "traffic": log(tiles * (tile_m + tile_n) * k / (m * k + n * k + m * n)),
        "busy": log(busy / max(compute, memory)),
    }
