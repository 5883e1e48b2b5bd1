"""How near the labeller's picks come to the best measured on the grid, with and without the grid's speeds.

    python experiments/h200/first_cost_model/grid.py experiments/h200/layers    # prints grid.txt

As measure.py, whose pickers `look-up` and `trees` (the first model) and whose figures these are, in FOLDS of shapes:
`labeller` knows the rounds of exploring alone, `both` also the H200's speeds of the other folds. Eight minutes.
"""

import math
import random
import sys
from pathlib import Path

import numpy as np
from measure import DEVICES, PICKS, apart, interval, listed, look_up, regret, trees

from cudal2.problem import Problem
from cudal2.records import to_json

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from labeller import Model, measured, on_the_grid, shown
from recorded import Row, read

FOLDS = 5


def liked(model: Model, rows: list[Row]) -> np.ndarray:
    places: dict[Problem, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.problem, []).append(place)
    asked = [(problem, model.pool(to_json(rows[at].setting) for at in some)) for problem, some in places.items()]
    found = np.zeros(len(rows))
    for some, speeds in zip(places.values(), model.speeds(asked), strict=True):
        found[some] = speeds
    return found


def show(title: str, tested: list[list[Row]], speeds: dict[str, list[np.ndarray]]) -> None:
    rng = np.random.default_rng(0)
    lost = {name: np.array([regret(*one, rng) for one in zip(tested, some)]) for name, some in speeds.items()}
    drawn = rng.integers(0, len(tested), (2000, len(tested)))
    print(f"\n{title}: {len(tested)} shapes\n{'':20s}" + "".join(f"{f'{count} picks':24s}" for count in PICKS))
    for name, values in lost.items():
        print(f"{name:20s}" + "".join(interval(column, drawn, math.exp) for column in values.T))
        if name != "look-up":
            less = values - lost["look-up"]
            print(f"{f'{name} - look-up':20s}" + "".join(interval(column, drawn) for column in less.T))


def main(folder: Path) -> None:
    rows, explored = read(), shown(measured(folder))
    alone, grid = Model(explored), on_the_grid()
    shapes = sorted({row.problem for row in rows})
    random.Random(0).shuffle(shapes)
    tested: list[list[Row]] = []
    speeds: dict[str, list[np.ndarray]] = {}
    for number in range(FOLDS):
        fold = set(shapes[number::FOLDS])
        both = Model({problem: some for problem, some in grid.items() if problem not in fold} | explored)
        pickers = {
            "look-up": look_up,
            "trees": trees,
            "labeller": lambda seen, some: liked(alone, some),
            "both": lambda seen, some, model=both: liked(model, some),
        }
        parts = [[row for row in rows if (row.problem in fold) == here] for here in (True, False)]
        rest, found = apart(*parts, pickers)
        tested += rest
        for name, some in found.items():
            speeds.setdefault(name, []).extend(some)
    for device in DEVICES:
        at = [place for place, pool in enumerate(tested) if pool[0].device == device]
        chosen = {name: [some[place] for place in at] for name, some in speeds.items()}
        show(device, [tested[place] for place in at], chosen)
        show(f"{device}, of what the look-up holds", *listed([tested[place] for place in at], chosen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
