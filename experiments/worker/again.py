"""The same kernels judged in two runs: is a figure today what it was then?

    python experiments/worker/again.py runs/emptied/four-evolution runs/swapped/layers runs/swapped/off-lattice

Of each kernel that the first run and another have for the same problem: its speedup there over its speedup then. Prints
geometric means by rows and work, with how many kernels of how many problems, and where the problems' means lie.
"""

import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from cudal2.archive import Archive
from cudal2.problem import parse

CLASSES = ("up to 16 rows", "up to 64", "up to 1,024", "more", "from 10^11 FLOP")


def speeds(folder: Path) -> dict[str, dict[str, float]]:
    """Of each problem: each right kernel's speedup, by the digest of its source."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    with Archive.of(folder, create=False) as archive:
        for source, problem, speedup in archive.rows(
            "SELECT source, problem, speedup FROM verdicts WHERE status = 'ok'"
        ):
            found[problem][source] = speedup
    return found


def main(first: Path, others: list[Path]) -> None:
    before, ratios = speeds(first), defaultdict[str, list[list[float]]](list)
    for other in others:
        for name, found in speeds(other).items():
            both, problem = found.keys() & before.get(name, {}).keys(), parse(name)
            if logs := [math.log(found[one] / before[name][one]) for one in both]:
                rows = next(i for i, most in enumerate((16, 64, 1024, math.inf)) if problem.m <= most)
                ratios[CLASSES[rows]].append(logs)
                if problem.flop >= 1e11:
                    ratios[CLASSES[4]].append(logs)
    for name in CLASSES:
        means = sorted(map(mean, ratios[name]))
        every = [log for logs in ratios[name] for log in logs]
        print(f"{name:16s} {len(every):4d} kernels, {len(means):2d} problems: {math.exp(mean(every)):.4f}", end="")
        print(f"   of problems {math.exp(means[0]):.3f} to {math.exp(means[-1]):.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), list(map(Path, sys.argv[2:])))
