"""What turns are worth at the same number of judged kernels: evaluations in 1, 2 and 4 turns, side by side.

    python experiments/smollm2/turns.py FOLDER…    # folders of `cudal2 eval source=policy`, the first to compare with

The speed is that over the fastest baseline, 0 for a kernel that is not right; of several kernels the best counts, 1
where none is faster than the library. Four kernels in a row are those of one conversation in four turns, of two in two,
of four in one. Intervals are of 95%, by a bootstrap over the shapes; those of differences are to the first folder.
"""

import sys
from pathlib import Path
from statistics import mean

from gain import speeds

from cudal2.problem import Problem
from cudal2.report.budget import FALLBACK, estimate

IN_A_ROW = 4
COLUMNS = "right", "mean speed", "more", "mean of what is right", "best of four", "more", "best of all", "more"


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    first, _ = speeds(folders[0])
    print("| | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (1 + len(COLUMNS)))
    for folder in folders:
        found, _ = speeds(folder)
        if found.keys() != first.keys():
            raise SystemExit(f"{folder} has other shapes than {folders[0]}")
        samples = [speed for values in found.values() for speed in values]
        right = [speed for speed in samples if speed]
        cells = [f"{len(right)} of {len(samples)}", f"{mean(samples):.3f}", more(found, first, 1)]
        cells.append(f"{mean(right):.3f}")
        for count in (IN_A_ROW, len(samples) // len(found)):
            cells += [f"{mean(best(values, count) for values in found.values()):.3f}", more(found, first, count)]
        print(f"| {folder.name} | " + " | ".join(cells) + " |")


def best(values: list[float], count: int) -> float:
    """The mean of the best of so many in a row; of single ones as they are."""
    groups = [values[at : at + count] for at in range(0, len(values), count)]
    return mean(max(group + [FALLBACK] * (count > 1)) for group in groups)


def more(found: dict[Problem, list[float]], first: dict[Problem, list[float]], count: int) -> str:
    return str(estimate([best(found[shape], count) - best(first[shape], count) for shape in first]))


if __name__ == "__main__":
    main()
