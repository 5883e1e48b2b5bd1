"""Does the simulator rank schedules as a GPU does? And with which figures would it rank them best?

    python experiments/sass/calibrate.py games > calibrate.txt       # games/runs: what games.py played there

Reads the journals of games that a GPU judged. Spearman's rank correlation between simulated and measured speedup, for
the figures that `conf/sass.yaml` would take (`default`), for those of TRIES drawn at random that rank one half of this
kernel's edits best, on its other half (`own`), and for those that rank the other kernels' edits best (`others`).
"""

import argparse
import random
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import msgspec
import numpy as np
from cudal2.sass.judges.fitted import correlation, drawn

from cudal2.config import MachineConfig, SassConfig, load
from cudal2.records import Status
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.game.task import Line
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Listing
from cudal2.sass.polish import subject


class Played(msgspec.Struct):
    """A kernel and edits of it with their measured speedups, in random order."""

    name: str
    listing: Listing
    edited: list[Listing]
    measured: list[float]

    def under(self, machine: MachineConfig) -> tuple[float, float]:
        """The correlations on one half of the edits and on the other."""
        judge, half = Simulated(self.listing, machine), len(self.edited) // 2
        simulated = [judge.of(one) for one in self.edited]
        return tuple(correlation(simulated[those], self.measured[those]) for those in (slice(half), slice(half, None)))


def played(run: Path, most: int) -> Played:
    """What was measured in a game's folder; ValueError where that is nothing or its kernel is not beside `runs`."""
    source = next((one for one in run.parent.parent.glob(f"{run.name}*") if one.stem == run.name), None)
    if source is None:
        raise ValueError("its kernel is not beside `runs`")
    lines = [
        msgspec.json.decode(line, type=Line)
        for path in sorted(run.glob("*/journal.jsonl"))
        for line in path.read_bytes().splitlines()[1:]
    ]
    right = list({line.edit: line for line in lines if line.measured.status is Status.OK}.values())
    if len(right) < 2:
        raise ValueError("no edit was measured")
    right = random.Random(0).sample(right, min(len(right), most))
    size = run.name.rpartition("-")[2]
    listing = subject.find(source, load("sass", [f"problem={size}"], SassConfig)).listing
    return Played(
        run.name, listing, [replayed(listing, one.edit) for one in right], [one.measured.speedup for one in right]
    )


def tried(run: Path, machines: list[MachineConfig], most: int) -> tuple[Played, list[tuple[float, float]]] | str:
    """A kernel, and its correlations under each of the machines; or why there is none."""
    try:
        game = played(run, most)
    except ValueError as error:
        return f"{run.name}: {error}"
    return game, [game.under(one) for one in machines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--most", type=int, default=300, help="edits of a kernel taken, at random")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(0)
    machines = [MachineConfig(), *(drawn(rng) for _ in range(arguments.tries))]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        paths = sorted((arguments.folder / "runs").iterdir())
        found = list(pool.map(tried, paths, repeat(machines), repeat(arguments.most)))
    print("\n".join(one for one in found if isinstance(one, str)))
    games = [one for one in found if not isinstance(one, str)]
    table = np.array([scores for _, scores in games])  # kernel, machine, half
    whole = table.mean(axis=2)
    print(f"{'kernel':<32} {'edits':>5} {'least':>6} {'most':>6} {'default':>8} {'own':>6} {'others':>6}")
    for row, (game, _) in enumerate(games):
        own = table[row, table[row, :, 0].argmax(), 1]
        rest = np.delete(whole, row, axis=0).mean(axis=0) if len(games) > 1 else whole[row]
        print(
            f"{game.name:<32} {len(game.edited):>5} {min(game.measured):>6.3f} {max(game.measured):>6.3f} "
            f"{whole[row, 0]:>8.2f} {own:>6.2f} {whole[row, rest.argmax()]:>6.2f}"
        )
    best = whole.mean(axis=0).argmax()
    print(f"best for all, {whole[:, best].mean():.2f} in the mean: {machines[best]}")


if __name__ == "__main__":
    main()
