"""What each round of exploring (layers.py) gave, and how odd sizes fare: figures of a rough baseline and one look.

    python experiments/h200/rounds.py first.jsonl second.jsonl …

For each number of rows of the first round's shapes the fastest of all rounds up to each, as geometric means; then the
fastest on odd sizes, by whether a row of A and B is a multiple of 32 bytes.
"""

import statistics
import sys
from itertools import product
from pathlib import Path

from layers import odd_sizes
from refit import explored

from cudal2.problem import parse

SECTOR, MANY = 16, 400
"""Elements of 32 bytes; odd sizes with more rows are told apart."""


def main(outs: list[Path]) -> None:
    best: dict[str, list[float]] = {}
    for number, out in enumerate(outs):
        for name, rows in explored(out).items():
            best.setdefault(name, [0.0] * len(outs))[number] = rows[0]["speedup"]
    first = {name: speeds for name, speeds in best.items() if speeds[0]}
    for m in sorted({parse(name).m for name in first}):
        shapes = [speeds for name, speeds in first.items() if parse(name).m == m]
        means = (statistics.geometric_mean(max(speeds[: n + 1]) for speeds in shapes) for n in range(len(outs)))
        print(f"{m:>5} rows, {len(shapes):>2} shapes:", *(f"{mean:.3f}" for mean in means))

    odd = [problem for problem in odd_sizes() if problem.mnk in best]
    for whole, few in product((True, False), repeat=2):
        alike = (problem for problem in odd if (problem.k % SECTOR == 0) == whole and (problem.m <= MANY) == few)
        if speeds := [max(best[problem.mnk]) for problem in alike]:
            rows = (
                f"rows {'' if whole else 'no '}multiple of 32 bytes, {'up to' if few else 'more than'} {MANY} of them"
            )
            mean = statistics.geometric_mean(speeds)
            print(f"{rows}: {len(speeds)} shapes, {mean:.3f} ({min(speeds):.3f} to {max(speeds):.3f})")


if __name__ == "__main__":
    main([Path(out) for out in sys.argv[1:]])
