"""What rounds that ask anew are worth to the model, and what was far behind before them.

    python experiments/h200/constants/anew.py > experiments/h200/constants/anew.txt     # six minutes, with scikit-learn

A third of the weights is kept out, three times, of all that is measured. On shapes of the rounds `emptied` and `lines`:
the first pick, and the best of the first four, over the fastest that was measured, in the mean.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from labeller import EMPTIED, FAR, FEW, ROUNDS, Measured, Model, explored, measured, on_the_grid, shown

LAYERS = Path(__file__).parents[1] / "layers"
LINES, PICKS = "lines", 4


def seen(rounds: Sequence[str], far: float) -> Measured:
    """What a model of these rounds learns, where what was `far` behind before another round counts."""
    return shown(on_the_grid() | measured(LAYERS, rounds, far))


def kind(m: int, k: int) -> str:
    return "up to 64 rows" if m <= FEW else f"more, K a multiple of {16 if k % 16 == 0 else 8}"


def main() -> None:
    ways = {
        f"without {EMPTIED}": seen([name for name in ROUNDS if name != EMPTIED], FAR),
        "without what was far behind": seen(ROUNDS, np.inf),
        "what ships": (ships := seen(ROUNDS, FAR)),
    }
    names = {line.problem for name in (EMPTIED, LINES) for line in explored(LAYERS, name)}
    weights = sorted({(one.n, one.k) for one in ships})
    random.Random(2).shuffle(weights)
    found = defaultdict[tuple[str, str], list[list[float]]](list)
    for third in range(3):
        apart = set(weights[third::3])
        asked = {one: some for one, some in ships.items() if one.mnk in names and (one.n, one.k) in apart}
        for way, some in ways.items():
            model = Model({one: knows for one, knows in some.items() if (one.n, one.k) not in apart})
            speeds = model.speeds([(one, model.pool(settings)) for one, settings in asked.items()])
            for (one, settings), liked in zip(asked.items(), speeds):
                ranked = np.array(list(settings.values()))[np.argsort(-liked)]
                found[kind(one.m, one.k), way].append([ranked[0], ranked[:PICKS].max()])
    for (name, way), speeds in sorted(found.items()):
        first, four = np.exp(np.mean(speeds, axis=0))
        print(f"{name:30s}{way:30s}{len(speeds)} shapes  first {first:.3f}  best of {PICKS} {four:.3f}")


if __name__ == "__main__":
    main()
