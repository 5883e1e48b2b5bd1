"""What the kernels of a campaign are worth: the best of so many a shape, by each method alone and by all together.

    python experiments/h200/campaign/worth.py RUN

Speedups as the search measured them, what is lost to the vendor counted as 1.00; geometric means with 95% intervals
(shapes drawn anew). Together means as many of each method. Only shapes on which every method has all its kernels count.
"""

import math
import sys
from collections import Counter
from pathlib import Path

from cudal2.archive.store import Archive
from cudal2.report import budget


def main(folder: Path) -> None:
    with Archive.of(folder, create=False) as archive:
        [(fingerprint, _)] = Counter(sample.fingerprint for sample in archive.samples("search")).most_common(1)
        searches = budget.within(archive, fingerprint, together=True)
    common = set.intersection(*map(set, searches.values()))
    most = {name: max(len(values[0]) for values in shapes.values()) for name, shapes in searches.items()}
    shapes = sorted(p for p in common if all(len(s[p][0]) == most[name] for name, s in searches.items()))
    print(f"{len(shapes)} shapes\n\nkernels a shape  by         best of them")
    for name, found in searches.items():
        for count in range(1, most[name] + 1):
            show(count, name, [found[p][0][:count] for p in shapes])
    for count in range(1, min(most.values()) + 1):
        both = [[v for found in searches.values() for v in found[p][0][:count]] for p in shapes]
        show(count * len(searches), "together", both)


def show(kernels: int, name: str, values: list[list[float]]) -> None:
    found = budget.estimate([math.log(max(budget.FALLBACK, *each)) for each in values])
    print(f"{kernels:15d}  {name:10s} {budget.Estimate(*map(math.exp, found))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
