"""First samples and the best of four on layers kept apart, by rows: what a policy's first kernel is worth.

    cudal2 search shapes=$(python experiments/h200/layers.py apart) target=sm_90a run=runs/first-any prompt=kernel_lm_worked policy.path=runs/hopper_any_known search.method=policy search.kernels=4 search.generation=4 search.prior=none search.neighbours=0
    cudal2 search shapes=$(python experiments/h200/layers.py apart) target=sm_90a run=runs/first-table search.kernels=4 search.generation=4 search.neighbours=0
    python experiments/h200/learning/first.py runs/first-any runs/first-table
    python experiments/h200/learning/first.py --layers runs/first-any runs/first-table    # or --off-lattice: of these alone
    python experiments/h200/learning/first.py odd     # the same layers in bf16, with odd numbers of rows

Speedups over the fastest of eight baselines, as the searches measured them: geometric means over the shapes that all of
them have, a failure as FAILED, with 95% intervals over shapes. Then the difference to the first folder, in logarithms.
`one+other` are two folders of one search, on other shapes. Folders whose names differ only by a number at the end are
seeds of one training: of these also the mean difference, with an interval over seeds and shapes, both drawn anew.
"""  # noqa: E501

import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cudal2.problem import Problem, off_lattice
from cudal2.report.budget import estimate, load
from cudal2.split import REPORTED

ROWS = ((1, 16), (17, 64), (65, 1024), (1025, 16384), (1, 16384))
Searched = dict[Problem, list[list[float]]]
FAILED, PICKS = 0.1, (1, 2, 4, 16)


def interval(logs: np.ndarray, as_shown=np.exp) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*as_shown(np.array(estimate(logs.tolist()))))


def over_seeds(less: np.ndarray) -> str:
    """Of differences by seed and shape."""
    rng, (seeds, shapes) = np.random.default_rng(0), less.shape
    drawn = [less[rng.integers(seeds, size=seeds)][:, rng.integers(shapes, size=shapes)].mean() for _ in range(4000)]
    return "{:.3f} [{:.3f}, {:.3f}]".format(less.mean(), *np.quantile(drawn, (0.025, 0.975)))


def searched(named: str) -> Searched:
    """Of each shape of one search, or of several joined by "+", the speedups in the order in which they came."""
    return {
        problem: values
        for name in named.split("+")
        for problem, values in next(iter(load([Path(name)]).values())).items()
    }


def show(folders: list[str], only: str = "") -> None:
    """`only` may be --layers or --off-lattice."""
    searches = {Path(folder).name: searched(folder) for folder in folders}
    shapes = [one for one in next(iter(searches.values())) if all(one in found for found in searches.values())]
    off = {problem.mnk for problem in off_lattice(*REPORTED)}
    shapes = [one for one in shapes if only != ("--layers" if one.mnk in off else "--off-lattice")]
    best = {
        name: np.log([[max([FAILED, *found[one][0][:count]]) for count in PICKS] for one in shapes])
        for name, found in searches.items()
    }
    for least, most in ROWS:
        here = np.array([least <= one.m <= most for one in shapes])
        if not here.any():
            continue
        print(f"\n{least} to {most} rows, {here.sum()} shapes" + "".join(f"{f'best of {n}':>24s}" for n in PICKS))
        for name, found in searches.items():
            tried = [speed for one, row in zip(shapes, here) if row for speed in found[one][0][: PICKS[-1]]]
            right = f"{name} ({np.mean(np.array(tried) > 0):.0%} right)"
            print(f"{right:28s}" + "".join(f"{interval(column):>24s}" for column in best[name][here].T))
        seeds = defaultdict(list)
        for name in list(searches)[1:]:
            less = (best[name] - best[next(iter(searches))])[here]
            print(f"{f'{name} less the first':28s}" + "".join(f"{interval(one, np.array):>24s}" for one in less.T))
            seeds[re.sub(r"-\d+$", "", name)].append(less)
        for name, some in seeds.items():
            if len(some) > 1:
                columns = np.array(some).transpose(2, 0, 1)
                print(f"{f'{name}, {len(some)} seeds':28s}" + "".join(f"{over_seeds(one):>24s}" for one in columns))


def odd() -> str:
    """The layers of `layers.py apart` in bf16, each with another number of rows: 1, 3, 5, 11, 23 …"""
    script = Path(__file__).parents[1] / "layers.py"
    names = subprocess.run([sys.executable, script, "apart"], check=True, capture_output=True, text=True).stdout
    pairs = [name.rsplit("@", 1) for name in names.strip().split(",")]
    return ",".join(f"{layer}@{max(1, round(int(rows) / math.sqrt(2)) | 1)}_bf16" for layer, rows in pairs)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["odd"]:
            print(odd())
        case ["--layers" | "--off-lattice" as only, *folders]:
            show(folders, only)
        case folders:
            show(folders)
