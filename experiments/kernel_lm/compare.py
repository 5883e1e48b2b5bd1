"""What policies write at an equal number of judged kernels, over seeds and shapes.

    python experiments/kernel_lm/compare.py FOLDER/first-0 FOLDER/first-1 FOLDER/other-0 …

Folders of `cudal2 eval source=policy` with the same shapes; those whose names differ only by the number at the end are
seeds of one policy. The speed is that over the fastest baseline, 0 for a kernel that is not right; of several kernels
the best counts, 1 where none is faster than the library. Four in a row are those of one conversation in four turns, or
of four. "More" is the difference to the first policy, with a 95% interval by a bootstrap over the pairs of a shape
and a seed; then each seed's own. Below it each turn of those that were written in several, beside the first one.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from cudal2.archive import Archive
from cudal2.report.budget import FALLBACK, estimate, load

IN_A_ROW = 4
Speeds = list[float]


def best(values: Speeds, count: int) -> float:
    """The mean of the best of so many in a row; of single ones as they are."""
    groups = [values[at : at + count] for at in range(0, len(values), count)]
    return mean(max([*group, FALLBACK] if count > 1 else group) for group in groups)


def main(folders: list[Path]) -> None:
    every = load(folders)
    first = next(iter(every.values()))
    print("| | right | mean speed | more | its seeds | best of four | more | its seeds | best of all | more |")
    print("|" + "---|" * 10)
    for name, found in every.items():
        if found.keys() != first.keys() or any(len(found[shape]) != len(first[shape]) for shape in first):
            raise SystemExit(f"{name} has other shapes or seeds than the first policy")
        samples = [speed for seeds in found.values() for some in seeds for speed in some]
        cells = [name, f"{sum(speed > 0 for speed in samples)} of {len(samples)}"]
        for count in (1, IN_A_ROW, len(next(iter(found.values()))[0])):
            reached = [[best(list(some), count) for some in found[shape]] for shape in first]
            before = [[best(list(some), count) for some in first[shape]] for shape in first]
            more = [[a - b for a, b in zip(*pair)] for pair in zip(reached, before)]
            cells += [f"{mean(map(mean, reached)):.3f}", str(estimate([one for seeds in more for one in seeds]))]
            cells += [", ".join(f"{mean(seed):+.3f}" for seed in zip(*more))] if count <= IN_A_ROW else []
        print("| " + " | ".join(cells) + " |")


def by_turn(folders: list[Path]) -> None:
    """Each turn's share that is right and mean speed, and how much more that is than the first one's, over the pairs of
    a shape and a seed."""
    speeds: dict[int, dict[tuple, Speeds]] = defaultdict(lambda: defaultdict(list))
    for folder in folders:
        with Archive.of(folder, create=False) as archive:
            samples = list(archive.samples("eval"))
        if any(sample.origin.turn for sample in samples):
            for sample in samples:
                speeds[sample.origin.turn][sample.problem, folder.name].append(sample.speedup or 0.0)
    for turn, pairs in sorted(speeds.items()):
        every = [speed for some in pairs.values() for speed in some]
        more = estimate([mean(pairs[pair]) - mean(first) for pair, first in speeds[0].items()])
        right = sum(speed > 0 for speed in every)
        print(f"turn {turn + 1}: {right} of {len(every)} right, {mean(every):.3f}, {more} more than the first")


if __name__ == "__main__":
    every = [Path(name) for name in sys.argv[1:]]
    main(every)
    by_turn(every)
