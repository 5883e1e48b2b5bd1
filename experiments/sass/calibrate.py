"""Does the simulator rank schedules as a GPU does? And with which figures would it rank them best?

    python experiments/sass/calibrate.py games/runs/multistage-1024_1024_1024 games/multistage-1024_1024_1024.cu

Reads the journals of a game that a GPU judged. Spearman's rank correlation between simulated and measured speedup, for
the figures that `conf/sass.yaml` would take and for the best of some drawn at random, which half of the edits choose
and the other half is tried on.
"""

import argparse
import random
from pathlib import Path

import msgspec
import numpy as np

from cudal2.config import MachineConfig, SassConfig, load
from cudal2.polish import subject
from cudal2.records import Status
from cudal2.sass.game.journal import Line
from cudal2.sass.judges.simulator import Simulated
from cudal2.sass.legality import replayed

FIGURES = {
    "warps": (1, 2, 3, 4),
    "matrix": (2, 4, 8, 16, 32),
    "shared": (2, 4, 8, 16, 32),
    "shared_latency": (20, 28, 36, 48),
    "copy": (2, 4, 8, 16, 32),
    "copy_latency": (200, 400, 600, 900),
    "read_latency": (8, 16, 32),
}


def ranks(values: list[float]) -> np.ndarray:
    """Ranks from 0, equal values sharing their mean."""
    _, place, count = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]


def correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, 0 where one of the two is constant."""
    first, second = ranks(one), ranks(other)
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("kernel", type=Path)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--most", type=int, default=400, help="edits taken, at random")
    arguments, overrides = parser.parse_known_args()
    listing = subject.find(arguments.kernel, load("sass", overrides, SassConfig)).listing
    lines = [
        msgspec.json.decode(line, type=Line)
        for path in sorted(arguments.run.glob("*/journal.jsonl"))
        for line in path.read_bytes().splitlines()[1:]
    ]
    right = list({line.edit: line for line in lines if line.measured.status is Status.OK}.values())
    rng = random.Random(0)
    right = rng.sample(right, min(len(right), arguments.most))
    edited = [replayed(listing, line.edit) for line in right]
    measured = [line.measured.speedup for line in right]
    half = len(right) // 2

    def of(machine: MachineConfig) -> tuple[float, float]:
        judge = Simulated(listing, machine)
        simulated = [judge.of(one) for one in edited]
        return correlation(simulated[:half], measured[:half]), correlation(simulated[half:], measured[half:])

    print(f"{len(right)} edits, measured {min(measured):.3f} to {max(measured):.3f}")
    print("as they are: {:.2f} and {:.2f}".format(*of(MachineConfig())))
    drawn = [MachineConfig(**{k: rng.choice(v) for k, v in FIGURES.items()}) for _ in range(arguments.tries)]
    best = max(((of(one), one) for one in drawn), key=lambda pair: pair[0][0])
    print("the best of {} on one half {:.2f}, on the other {:.2f}: {}".format(len(drawn), *best[0], best[1]))


if __name__ == "__main__":
    main()
