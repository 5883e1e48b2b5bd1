"""How good the kernels are that a cost model chooses on shapes kept from it, beside a look-up's and others'.

    python experiments/h200/first_cost_model/measure.py    # prints regret.txt

Of each shape only the settings that were measured there can be chosen. The regret of so many picks is the geometric
mean over shapes of (the best speed of the picks) / (the best measured speed of that shape), with 95% intervals (shapes
drawn anew); what a picker cannot tell apart it picks at random, in the mean of 20 draws. Beside it the difference to
the look-up, shape by shape. `look-up` is what a search begins with today, the shape's own settings left out of it;
what it does not hold is picked last. `setting` and `family` go by the mean on the other shapes, `ridge` is a linear
model of the same facts and their products.
"""

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import fitted
import numpy as np

from cudal2.problem import Problem, grid
from cudal2.search import prior
from cudal2.search.known import shipped_settings
from cudal2.search.proposer import Setting
from cudal2.split import unseen

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
import recorded
from explored import FAMILIES, TARGET
from recorded import Row

FOLDS, PICKS, DRAWS, UNITS = 10, (1, 2, 4, 8), 20, 132
UNKNOWN = -1000
GRID = set(grid())
DEVICES = "H100 80GB HBM3", "H200"
APART: dict[str, Callable[[Problem], bool]] = {
    "shapes that training never sees, learnt from the others": unseen,
    "a side of 12288, learnt from sides that are powers of two": lambda one: 12288 in (one.m, one.n, one.k),
    "layers of models, learnt from the grid": lambda one: one not in GRID,
}
Picker = Callable[[list[Row], list[Row]], np.ndarray]
"""Learns from the first rows, and says how much it likes each of the others."""


def trees(seen: list[Row], rows: list[Row]) -> np.ndarray:
    return fitted.fit(seen, UNITS).speeds(rows)


def ridge(seen: list[Row], rows: list[Row]) -> np.ndarray:
    codes = fitted.numbered(seen)
    numbers = np.nan_to_num(fitted.table([*seen, *rows], codes, UNITS))
    plain, named = np.split(numbers, [-len(codes)], axis=1)
    plain = (plain - plain.mean(0)) / (plain.std(0) + 1e-9)
    hot = np.hstack([column[:, None] == np.unique(column) for column in named.T]).astype(float)
    crossed = np.hstack([plain * plain[:, [place]] for place in range(plain.shape[1])])
    place = list(codes).index("family")
    families = (named[:, [place]] == np.arange(len(codes["family"]))).astype(float)
    mixed = np.hstack([plain * families[:, [place]] for place in range(families.shape[1])])
    made = np.hstack([np.ones((len(plain), 1)), plain, hot, crossed, mixed])
    first, wanted = made[: len(seen)], np.array([row.speed for row in seen])
    weights = np.linalg.solve(first.T @ first + 30 * np.eye(made.shape[1]), first.T @ wanted)
    return made[len(seen) :] @ weights


def means(name: Callable[[Setting], str]) -> Picker:
    def picker(seen: list[Row], rows: list[Row]) -> np.ndarray:
        found = defaultdict(list)
        for pool in pools(seen):
            usual = np.mean([row.speed for row in pool])
            for row in pool:
                found[name(row.setting)].append(row.speed - usual)
        return np.array([np.mean(found.get(name(row.setting), [-1.0])) for row in rows])

    return picker


def look_up(seen: list[Row], rows: list[Row]) -> np.ndarray:
    """What `search.prior=known` says, as if the shapes that are asked for were never explored."""
    stored, liked = shipped_settings(TARGET), dict[Problem, dict[str, int]]()
    for problem in dict.fromkeys(row.problem for row in rows):
        own = stored.pop(problem, None)
        for place, setting in enumerate(prior.known_settings(TARGET, problem, FAMILIES)):
            liked.setdefault(problem, {}).setdefault(plain(setting), -place)
        if own:
            stored[problem] = own
    return np.array([liked[row.problem].get(plain(row.setting), UNKNOWN) for row in rows], dtype=float)


def plain(setting: Setting) -> str:
    return f"{setting.family} {sorted((setting.knobs | {'style': ''}).items())}"


PICKERS: dict[str, Picker] = {
    "look-up": look_up,
    "trees": trees,
    "ridge": ridge,
    "setting": means(plain),
    "family": means(lambda setting: setting.family),
    "random": lambda seen, rows: np.zeros(len(rows)),
}


def pools(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each shape on each device, of those that have several."""
    ordered = sorted(rows, key=lambda row: (row.device, row.problem))
    found = [list(some) for _, some in groupby(ordered, key=lambda row: (row.device, row.problem))]
    return [pool for pool in found if len(pool) > 1]


def regret(pool: list[Row], liked: np.ndarray, rng: np.random.Generator, picks: Sequence[int] = PICKS) -> np.ndarray:
    speeds = np.array([row.speed for row in pool])
    found = np.zeros(len(picks))
    for _ in range(DRAWS):
        order = np.lexsort((rng.random(len(pool)), -liked))
        best = np.maximum.accumulate(speeds[order])
        found += [best[min(count, len(pool)) - 1] - speeds.max() for count in picks]
    return found / DRAWS


def show(title: str, tested: list[list[Row]], liked: dict[str, list[np.ndarray]]) -> None:
    rng = np.random.default_rng(0)
    lost = {name: np.array([regret(*one, rng) for one in zip(tested, some)]) for name, some in liked.items()}
    drawn = rng.integers(0, len(tested), (2000, len(tested)))
    print(f"\n{title}: {len(tested)} shapes, {np.mean([len(pool) for pool in tested]):.1f} settings each")
    print(f"{'':20s}" + "".join(f"{f'{count} picks':24s}" for count in PICKS))
    for name, values in lost.items():
        print(f"{name:20s}" + "".join(interval(column, drawn, math.exp) for column in values.T))
    for name in ("trees", "ridge", "setting"):
        less = lost[name] - lost["look-up"]
        print(f"{f'{name} - look-up':20s}" + "".join(interval(column, drawn) for column in less.T))
    error = np.concatenate([some - [row.speed for row in pool] for pool, some in zip(tested, liked["trees"])])
    within = np.concatenate(
        [(some - some.mean()) - centred(pool) for pool, some in zip(tested, liked["trees"])],
    )
    spread = np.concatenate([centred(pool) for pool in tested])
    rms = [math.sqrt(np.mean(one**2)) for one in (error, within, spread)]
    print("trees, error of log speed: {:.3f}; of differences within a shape: {:.3f} of {:.3f}".format(*rms))


def interval(values: np.ndarray, drawn: np.ndarray, as_shown: Callable[[float], float] = float) -> str:
    low, high = np.percentile(values[drawn].mean(1), [2.5, 97.5])
    return "{:.3f} [{:.3f}, {:.3f}]".format(*map(as_shown, (values.mean(), low, high))).ljust(24)


def centred(pool: list[Row]) -> np.ndarray:
    speeds = np.array([row.speed for row in pool])
    return speeds - speeds.mean()


def apart(
    rows: list[Row], seen: list[Row], pickers: dict[str, Picker] = PICKERS
) -> tuple[list[list[Row]], dict[str, list[np.ndarray]]]:
    """The pools of some rows, and what each picker, having learnt from those seen, likes of them."""
    rest = pools(rows)
    flat = [row for pool in rest for row in pool]
    ends = np.cumsum([len(pool) for pool in rest])[:-1]
    return rest, {name: np.split(picker(seen, flat), ends) for name, picker in pickers.items()}


def listed(tested: list[list[Row]], liked: dict[str, list[np.ndarray]]) -> tuple:
    """Only what the look-up holds for a shape: the task of a search that begins with it, in another order."""
    inside = [some > UNKNOWN for some in liked["look-up"]]
    several = [place for place, some in enumerate(inside) if some.sum() > 1]
    rest = [[row for row, here in zip(tested[place], inside[place]) if here] for place in several]
    return rest, {name: [some[place][inside[place]] for place in several] for name, some in liked.items()}


def main() -> None:
    rows = recorded.read()
    shapes = sorted({row.problem for row in rows})
    random.Random(0).shuffle(shapes)
    fold = {problem: place % FOLDS for place, problem in enumerate(shapes)}
    tested: list[list[Row]] = []
    liked: dict[str, list[np.ndarray]] = {name: [] for name in PICKERS}
    for number in range(FOLDS):
        parts = [[row for row in rows if (fold[row.problem] == number) == here] for here in (True, False)]
        rest, found = apart(*parts)
        tested += rest
        for name, some in found.items():
            liked[name] += some
    for device in DEVICES:
        at = [place for place, pool in enumerate(tested) if pool[0].device == device]
        chosen = {name: [some[place] for place in at] for name, some in liked.items()}
        show(f"{device}, ten folds of shapes", [tested[place] for place in at], chosen)
        show(f"{device}, the same, of what the look-up holds", *listed([tested[place] for place in at], chosen))
    for device in DEVICES:
        for name, kept in APART.items():
            here = [row for row in rows if row.device == device and kept(row.problem)]
            if pools(here):
                show(f"{device}, {name}", *apart(here, [row for row in rows if not kept(row.problem)]))
    half = {problem for problem, number in fold.items() if number % 2}
    for device in DEVICES:
        here = [row for row in rows if row.device == device and row.problem in half]
        seen = [row for row in rows if row.device != device and row.problem not in half]
        show(f"{device}, half of the shapes, learnt on the other device's other half", *apart(here, seen))


if __name__ == "__main__":
    main()
