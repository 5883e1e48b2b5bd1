"""Whether the settings that a search takes from the cost model had better differ in more than details.

    python experiments/h200/known_settings/varied.py experiments/h200/layers    # prints varied.txt

Three times a third of the weights is kept from the table and the model, as in cost_model/thirds.py. Of each shape only
what was measured there can be picked: settings that the model likes in turn with those of the nearest shapes, as a
search takes them (`prior.alternating`), either as the model has them or `prior.varied`. The fastest of the picks over
the fastest measured, geometric means over shapes; then the difference of logarithms, with 95% intervals over weights.
"""

import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np

from cudal2.archive.selection import whole_sectors
from cudal2.problem import Problem
from cudal2.records import to_json
from cudal2.search import prior
from cudal2.search.proposer import Setting

sys.path.insert(0, str(Path(__file__).parents[1] / "cost_model"))
from labeller import measured
from picks import interval
from thirds import kept_out

PICKS = (1, 2, 4, 8, 16)
KINDS = ("1 to 16 rows", "17 to 64 rows", "more rows, whole sectors", "more rows, no whole sectors")


def kind(problem: Problem) -> str:
    return KINDS[0 if problem.m <= 16 else 1 if problem.m <= 64 else 2 if whole_sectors(problem) else 3]


def main(folder: Path) -> None:
    every = measured(folder)
    found: dict[str, list[tuple[int, list[list[float]]]]] = defaultdict(list)
    for problem, near, guessed in kept_out(every):
        some = every[problem]
        ranked = sorted(guessed, key=guessed.__getitem__, reverse=True)
        liked, nearest = ([msgspec.json.decode(one, type=Setting) for one in ones] for ones in (ranked, near))
        orders = (prior.alternating(list(ones), nearest) for ones in (liked, prior.varied(liked)))
        best = [[max(some[to_json(one)] for one in order[:count]) for count in PICKS] for order in orders]
        found[kind(problem)].append((problem.n * 10**6 + problem.k, best))
    for name in KINDS:
        owner = np.array([weight for weight, _ in found[name]])
        alike, varied = np.array([best for _, best in found[name]]).swapaxes(0, 1)
        print(f"\n{name}: {len(owner)} shapes" + "".join(f"{f'{count} picks':>24s}" for count in PICKS))
        print(f"{'as the model has it':20s}" + "".join(interval(column, owner) for column in alike.T))
        print(f"{'varied':20s}" + "".join(interval(column, owner) for column in varied.T))
        print(f"{'difference':20s}" + "".join(interval(column, owner, float) for column in (varied - alike).T))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
