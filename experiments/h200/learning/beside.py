"""Are four kernels of a policy worth more than the last four of evolution? At an equal number of kernels a shape.

    python experiments/h200/learning/beside.py EVOLUTION POLICY…      # folders of searches of the same shapes

For 8 and for 16 kernels a shape: the best of so many of evolution, beside the best of a policy's four and evolution's
first others, those left out that the policy wrote too. Evolution did not learn from the policy's, so this is what the
two find who know nothing of each other. Geometric means over the fastest baseline, a failure as FAILED, then the
difference of logarithms, with 95% intervals over shapes: for layers, for shapes off the lattice, for both.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from first import FAILED, interval

from cudal2.archive import Archive
from cudal2.form import form
from cudal2.problem import Problem, off_lattice
from cudal2.split import REPORTED

KERNELS, OF_POLICY = (8, 16), 4


def searched(folder: Path) -> dict[Problem, dict[str, float]]:
    """For each problem the speedup of each distinct kernel, in the order in which the search judged them."""
    found: dict[Problem, dict[str, float]] = defaultdict(dict)
    with Archive.of(folder, create=False) as archive:
        for one in archive.samples("search"):
            kernel = form(archive.source(one.source_hash))
            found[one.problem].setdefault(kernel, max(FAILED, one.speedup or 0.0))
    return found


def best(kernels: dict[str, float], count: int) -> float:
    return float(np.log(max(list(kernels.values())[:count])))


def main(evolution: Path, policies: list[Path]) -> None:
    alone, off = searched(evolution), {problem.mnk for problem in off_lattice(*REPORTED)}
    written = {folder: searched(folder) for folder in policies}
    shapes = [one for one in alone if all(one in some for some in written.values())]
    layers, others = ([one for one in shapes if (one.mnk in off) == there] for there in (False, True))
    for kind, some in (("layers", layers), ("off the lattice", others), ("both", shapes)):
        for count in KERNELS:
            usual = np.array([best(alone[one], count) for one in some])
            print(f"{kind}, {len(some)} shapes, {count} kernels: evolution {interval(usual)}")
            for folder, found in written.items():
                four = [dict(list(found[one].items())[:OF_POLICY]) for one in some]
                # The policy's come first, and of what both tried its own measurement counts.
                mixed = np.array([best(first | alone[one] | first, count) for one, first in zip(some, four)])
                print(f"  with {folder.name}'s {interval(mixed)}, difference {interval(mixed - usual, np.array)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
