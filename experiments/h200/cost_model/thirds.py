"""How near the picks of a look-up, of the labeller and of both come to the best measured, a third of the weights kept.

    python experiments/h200/cost_model/thirds.py experiments/h200/layers > experiments/h200/cost_model/thirds.txt
    python experiments/h200/cost_model/thirds.py experiments/h200/layers --astray > experiments/h200/cost_model/astray.txt

Three times a third of the 48 weights (N and K) is kept, with all rows, from the table of known settings and from the
model. Of each shape only what was measured there can be picked; figures are (the fastest of the picks) / (the fastest
of all measured), geometric means over shapes, with 95% intervals over weights.

`look-up`: `prior.known_settings`. `labeller`: the model, of all settings that are among the known or the TOP fastest of
another weight's shape. `menu`: of those in labels.jsonl.xz alone, which were chosen with all weights; a shape has
few of them among its measured settings, so `as many` is the same of equally many by chance. `listed`: what the look-up
lists, in the model's order. `blended`: the same less 0.01 for each place in the look-up's list. With --astray only
shapes of more than FEW rows count whose rows are no whole sectors.
"""  # noqa: E501

import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from labeller import Measured, Model, measured, on_the_grid
from picks import looked_up, show

from cudal2.archive.selection import whole_sectors
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search.known import listed, shipped_settings

PICKS = (1, 4, 8)
TOP, THIRDS, FEW = 10, 3, 64


def fast_somewhere(seen: Measured, apart: set[tuple[int, int]]) -> set[str]:
    """Settings in the table and the TOP fastest of each shape."""
    known = {to_json(one) for p, some in shipped_settings("sm_90a").items() if (p.n, p.k) not in apart for one in some}
    for some in seen.values():
        known.update(sorted(some, key=some.__getitem__, reverse=True)[:TOP])
    return known


def kept_out(
    every: Measured, wanted: Callable[[Problem], bool] = lambda _: True
) -> Iterator[tuple[Problem, list[str], dict[str, float]]]:
    """For each wanted shape, a third of the weights after the other: what the look-up lists of what was measured there,
    and how far behind the model thinks each setting that could be picked. Both know the other weights alone."""
    weights = sorted({(one.n, one.k) for one in every})
    random.Random(0).shuffle(weights)
    for third in range(THIRDS):
        apart = set(weights[third::THIRDS])
        seen, grid = (
            {problem: some for problem, some in one.items() if (problem.n, problem.k) not in apart}
            for one in (every, on_the_grid())
        )
        model, fast = Model(grid | seen), fast_somewhere(seen, apart)
        kept = [(problem, some) for problem, some in every.items() if problem not in seen and wanted(problem)]
        nears = [[one for one in looked_up(problem, apart) if one in some] for problem, some in kept]
        ables = [sorted(one for one in some if one in fast or one in near) for (_, some), near in zip(kept, nears)]
        speeds = model.speeds([(problem, model.pool(able)) for (problem, _), able in zip(kept, ables)])
        for (problem, _), near, able, guessed in zip(kept, nears, ables, speeds):
            yield problem, near, dict(zip(able, guessed))


def main(folder: Path, astray: bool) -> None:
    every = measured(folder)
    found: dict[str, list[list[float]]] = {}
    shapes, held, rng = list[Problem](), list[int](), random.Random("as many")
    menu = {to_json(setting) for _, setting in listed(Path(__file__).with_name("labels.jsonl.xz"))}
    print(f"{sum(map(len, every.values()))} pairs of {len(every)} shapes and a setting", flush=True)
    wanted = (lambda one: one.m > FEW and not whole_sectors(one)) if astray else (lambda _: True)
    for problem, near, liked in kept_out(every, wanted):
        some, able = every[problem], list(liked)
        of_menu = [one for one in able if one in menu]
        shapes.append(problem)
        held.append(len(of_menu))
        orders = {
            "look-up": near,
            "labeller": sorted(able, key=liked.__getitem__, reverse=True),
            "menu": sorted(of_menu, key=liked.__getitem__, reverse=True),
            "as many": sorted(rng.sample(able, len(of_menu)), key=liked.__getitem__, reverse=True),
            "listed": sorted(near, key=liked.__getitem__, reverse=True),
            "blended": sorted(near, key=lambda one: liked[one] - 0.01 * near.index(one), reverse=True),
        }
        for name, order in orders.items():
            best = [max([some[one] for one in order[:count]], default=-1.0) for count in PICKS]
            found.setdefault(name, []).append(best)
    table = {name: np.array(some) for name, some in found.items()}
    show(shapes, table, [(f"{name} - look-up", name, "look-up") for name in list(table)[1:]], PICKS)
    asked = np.mean([len(every[problem]) for problem in shapes])
    print(f"\nof the menu's {len(menu)} a shape has {np.mean(held):.1f} of {asked:.1f}; {held.count(0)} shapes none")
    first = table["labeller"][:, 0]
    worst = (f"{shapes[place].mnk} {math.exp(first[place]):.2f}" for place in np.argsort(first)[:8])
    print("\nthe labeller loses most: " + ", ".join(worst))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--astray" in sys.argv)
