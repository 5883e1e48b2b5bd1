"""The best kernel of all that some searches judged for each shape off the lattice, by rows and by how rows are aligned.

    python experiments/h200/learning/aligned.py runs/seeds/f*-*/          # their folders

Geometric means over the fastest baseline, with 95% intervals over shapes, and how many are faster than it.
"""

import sys
from pathlib import Path

import numpy as np
from first import interval

from cudal2.archive import Archive
from cudal2.archive.selection import whole_sectors
from cudal2.problem import Problem, off_lattice
from cudal2.split import REPORTED

FEW = 64


def main(folders: list[Path]) -> None:
    off, best = {problem.mnk for problem in off_lattice(*REPORTED)}, dict[Problem, float]()
    for folder in folders:
        with Archive(folder / "archive.sqlite") as archive:
            for sample in archive.samples():
                if sample.problem.mnk in off and sample.speedup:
                    best[sample.problem] = max(sample.speedup, best.get(sample.problem, 0.0))
    for few in (True, False):
        for whole in (True, False):
            some = [speed for one, speed in best.items() if (one.m <= FEW) == few and whole_sectors(one) == whole]
            rows = f"{'up to' if few else 'over'} {FEW} rows, {'whole sectors' if whole else 'no whole sectors'}"
            print(f"{rows}: {interval(np.log(some))}, {len(some)} shapes, {sum(speed > 1 for speed in some)} faster")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
