"""What the covered shapes (cost_model/cover.py) are worth in the table of known settings, on shapes of other rounds.

    python experiments/h200/known_settings/table.py experiments/h200/layers    # prints table.txt

As in cost_model/thirds.py: three times a third of the weights is kept from the table, with all rows, and of each shape
only what was measured there can be picked. The fastest of the look-up's picks over the fastest of all measured, with
the table as it ships and without the shapes that were covered; then the difference of logarithms.
"""

import json
import lzma
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cudal2.search.known import shipped_settings

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
import labeller
from explored import TARGET
from labeller import measured
from picks import looked_up, show
from thirds import THIRDS

PICKS = (1, 4, 8, 16)


def picked(every: labeller.Measured, picks: Sequence[int] = PICKS) -> np.ndarray:
    """For each shape what the look-up's first picks lose, without the third of the weights that it is of."""
    weights = sorted({(one.n, one.k) for one in every})
    random.Random(0).shuffle(weights)
    found = {}
    for third in range(THIRDS):
        apart = set(weights[third::THIRDS])
        for problem, some in every.items():
            if (problem.n, problem.k) in apart:
                near = [one for one in looked_up(problem, apart) if one in some]
                found[problem] = [max([some[one] for one in near[:count]], default=-1.0) for count in picks]
    return np.array([found[problem] for problem in every])


def main(folder: Path) -> None:
    stored = lzma.decompress((folder / "cover.jsonl.xz").read_bytes()).splitlines()
    covered = {json.loads(line)["problem"] for line in stored}
    labeller.ROUNDS = tuple(name for name in labeller.ROUNDS if name != "cover")
    every, table = measured(folder), shipped_settings(TARGET)
    found = {"with": picked(every)}
    for problem in [one for one in table if one.mnk in covered]:
        del table[problem]
    found["without"] = picked(every)
    show(list(every), found, [("difference", "with", "without")], PICKS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
