"""What a search would find that takes known settings from two lists in turn, from two searches that took one each.

    python experiments/h200/learning/alternating.py ONE OTHER      # folders of searches of the same shapes

Of each shape the kernels of the first generation, in the order proposed: the best of so many of either search, and of
the first of one, the first of the other that is new, and so on. Geometric means over the fastest baseline, a failure
as FAILED, then differences of logarithms, with 95% intervals over shapes.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from first import FAILED, interval

from cudal2.archive import Archive
from cudal2.problem import Problem, off_lattice
from cudal2.search.prior import alternating
from cudal2.search.proposer import Setting
from cudal2.split import REPORTED

PICKS = (1, 2, 4, 8)


def begun(folder: Path) -> dict[Problem, list[tuple[Setting, float]]]:
    """The settings of the first generation, and the logarithms of their speedups."""
    found = defaultdict(list)
    with Archive.of(folder, create=False) as archive:
        for one in archive.samples("search"):
            if one.origin.step == 0:
                setting = msgspec.json.decode(one.origin.prompt, type=Setting)
                found[one.problem].append((setting, float(np.log(one.speedup or FAILED))))
    return found


def best(some: Sequence[float]) -> list[float]:
    return [max(some[:count], default=float(np.log(FAILED))) for count in PICKS]


def main(folders: Sequence[str]) -> None:
    one, other = (begun(Path(folder)) for folder in folders)
    shapes, off = [problem for problem in one if problem in other], {problem.mnk for problem in off_lattice(*REPORTED)}
    picks = [
        count for count in PICKS if all(count <= len(some[problem]) for some in (one, other) for problem in shapes)
    ]
    found = defaultdict(list)
    for problem in shapes:
        here, there = one[problem], other[problem]
        both = alternating([setting for setting, _ in here], [setting for setting, _ in there])
        speeds = {setting.family + str(setting.knobs): speed for setting, speed in [*there, *here]}
        found[folders[0]].append(best([speed for _, speed in here]))
        found[folders[1]].append(best([speed for _, speed in there]))
        found["in turn"].append(best([speeds[setting.family + str(setting.knobs)] for setting in both]))
    kinds = {
        "up to 1,024 rows": [problem.m <= 1024 for problem in shapes],
        "more rows": [problem.m > 1024 for problem in shapes],
        "off the lattice": [problem.mnk in off for problem in shapes],
        "all": [True] * len(shapes),
    }
    for kind, here in kinds.items():
        if any(here):
            print(f"\n{kind}, {sum(here)} shapes" + "".join(f"{f'best of {count}':>24s}" for count in picks))
            table = {name: np.array(some)[np.array(here), : len(picks)] for name, some in found.items()}
            for name, some in table.items():
                print(f"{name:30s}" + "".join(f"{interval(column):24s}" for column in some.T))
            for name in folders:
                less = table["in turn"] - table[name]
                print(f"{f'in turn - {name}':30s}" + "".join(f"{interval(column, np.array):24s}" for column in less.T))


if __name__ == "__main__":
    main(sys.argv[1:])
