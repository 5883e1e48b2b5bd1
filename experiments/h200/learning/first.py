"""First samples and the best of four on layers kept apart, by rows: what a policy's first kernel is worth.

    cudal2 search shapes=$(python experiments/h200/layers.py apart) target=sm_90a run=runs/first-any prompt=kernel_lm_worked policy.path=runs/hopper_any_known search.method=policy search.kernels=4 search.generation=4 search.prior=none search.neighbours=0
    cudal2 search shapes=$(python experiments/h200/layers.py apart) target=sm_90a run=runs/first-table search.kernels=4 search.generation=4 search.neighbours=0
    python experiments/h200/learning/first.py runs/first-any runs/first-table
    python experiments/h200/learning/first.py --layers runs/first-any runs/first-table    # or --off-lattice: of these alone
    python experiments/h200/learning/first.py --evaluated runs/first-any runs/first-table    # what `cudal2 eval` measured of each
    python experiments/h200/learning/first.py odd     # the same layers in bf16, with odd numbers of rows

Speedups over the fastest of eight baselines, as the searches measured them: geometric means over the shapes that all of
them have, a failure as FAILED, with 95% intervals over shapes. Then the difference to the first folder, in logarithms.
`one+other` are two folders of one search, on other shapes. Folders whose names differ only by a number at the end are
seeds of one training: of these also the mean difference, with an interval over seeds and shapes, both drawn anew.
"""  # noqa: E501

import argparse
import math
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cudal2.evaluation import results
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


def show(folders: list[str], only: str | None, anew: bool) -> None:
    """`only` may be layers or off-lattice; `anew` shows what an evaluation measured."""
    judged = {Path(folder).name: (evaluated if anew else searched)(folder) for folder in folders}
    off = {problem.mnk for problem in off_lattice(*REPORTED)}
    shapes = [one for one in next(iter(judged.values())) if all(one in found for found in judged.values())]
    shapes = [one for one in shapes if only != ("layers" if one.mnk in off else "off-lattice")]
    picks, heads = (PICKS[:1], ["evaluated"]) if anew else (PICKS, [f"best of {count}" for count in PICKS])
    speeds = {name: [found[one][0][: PICKS[-1]] for one in shapes] for name, found in judged.items()}
    best = {name: [[max([FAILED, *one[:count]]) for count in picks] for one in some] for name, some in speeds.items()}
    compare(shapes, {name: np.log(some) for name, some in best.items()}, heads)
    for name, some in speeds.items():
        every = np.concatenate(some) > 0
        print(f"{name}: {every.sum()} of {len(every)} kernels were right")


def evaluated(folder: str) -> Searched:
    """Of each shape the speedup over the fastest baseline, as an evaluation measured the kernel that it chose."""
    rows = results.load(Path(folder)).rows
    return {row.problem: [[row.timing.speedup if row.timing else 0.0]] for row in rows}


def compare(shapes: list[Problem], speeds: dict[str, np.ndarray], heads: list[str]) -> None:
    """By rows, the means of these logarithms [shapes, columns], and what each has less than the first."""
    first, *others = speeds
    for least, most in ROWS:
        here = np.array([least <= one.m <= most for one in shapes])
        if not here.any():
            continue
        print(f"\n{least} to {most} rows, {here.sum()} shapes" + "".join(f"{head:>24s}" for head in heads))
        for name, each in speeds.items():
            print(f"{name:28s}" + "".join(f"{interval(column):>24s}" for column in each[here].T))
        seeds = defaultdict(list)
        for name in others:
            less = (speeds[name] - speeds[first])[here]
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--layers", dest="only", action="store_const", const="layers")
    parser.add_argument("--off-lattice", dest="only", action="store_const", const="off-lattice")
    parser.add_argument("--evaluated", action="store_true")
    asked = parser.parse_args()
    if asked.folders == ["odd"]:
        print(odd())
    else:
        show(asked.folders, asked.only, asked.evaluated)


if __name__ == "__main__":
    main()
