"""What a model of speed is worth as a judge of candidates: of what searches judged it picks the kernels to try first.

    python experiments/h200/learning/ranked.py experiments/h200/layers FOLDER…      # folders of searches on one machine

The model is the labeller (cost_model/labeller.py), fitted to the rounds of exploring, which hold none of these shapes.
For each folder: the first kernel as it came, the one that the model likes best, the best of the two and of the four
that it likes best, and the best of all. Then the same of all that the folders tried together for a shape, each setting
with its mean. Geometric means over the fastest baseline, a failure as FAILED, with 95% intervals over shapes; a text
that no setting renders is liked least.
"""

import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
from first import FAILED, interval

from cudal2.archive import Archive
from cudal2.problem import Problem, off_lattice
from cudal2.records import Status, to_json
from cudal2.search.proposer import Setting
from cudal2.split import REPORTED

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from collect import plain, written
from labeller import Model, measured

PICKS, LEAST = (1, 2, 4), 8
"""Best of so many, and how many settings a shape must have had to count where all are put together."""

Tried = dict[Problem, list[tuple[str, float]]]
"""For each problem the settings in the order judged ("" where there is none), and the logarithms of their speedups."""


def searched(folder: Path) -> Tried:
    found: Tried = defaultdict(list)
    with Archive.of(folder, create=False) as archive:
        for one in archive.samples("search"):
            proposed = one.origin.prompt.startswith('{"family"')
            setting = (
                msgspec.json.decode(one.origin.prompt, type=Setting)
                if proposed
                else written(archive.source(one.source_hash))
            )
            speed = one.speedup if one.status is Status.OK and one.speedup else FAILED
            found[one.problem].append((to_json(plain(setting)) if setting else "", float(np.log(speed))))
    return found


def together(searches: list[Tried]) -> Tried:
    found: Tried = {}
    for problem in set().union(*searches):
        speeds = defaultdict(list)
        for search in searches:
            for setting, speed in search.get(problem, []):
                if setting:
                    speeds[setting].append(speed)
        if len(speeds) >= LEAST:
            found[problem] = [(setting, float(np.mean(some))) for setting, some in speeds.items()]
    return found


def liked(model: Model, problem: Problem, tried: list[tuple[str, float]]) -> list[float]:
    """The speeds, that which the model likes best first."""
    settings = sorted({setting for setting, _ in tried if setting})
    speeds = model.speeds([(problem, model.pool(settings))])[0] if settings else ()
    guessed = dict(zip(settings, speeds))
    return [speed for _, speed in sorted(tried, key=lambda one: -guessed.get(one[0], -np.inf))]


def show(name: str, model: Model, tried: Tried) -> None:
    off = {problem.mnk for problem in off_lattice(*REPORTED)}
    for kind in ("layers", "off the lattice"):
        some = [one for one in tried if (one.mnk in off) == (kind != "layers")]
        if not some:
            continue
        came = np.array([tried[one][0][1] for one in some])
        ranked = [liked(model, one, tried[one]) for one in some]
        print(f"\n{name}, {kind}, {len(some)} shapes\nas it came, first    {interval(came)}")
        for count in PICKS:
            best = np.array([max(speeds[:count]) for speeds in ranked])
            print(
                f"liked best, {count}        {interval(best)}"
                + f", less it {interval(best - came, np.array)}" * (count == 1)
            )
        print(f"all                  {interval(np.array([max(speeds) for speeds in ranked]))}")


def main(rounds: Path, folders: list[Path]) -> None:
    model, searches = Model(measured(rounds)), {folder.name: searched(folder) for folder in folders}
    for name, tried in searches.items():
        show(name, model, tried)
    show("together", model, together(list(searches.values())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
