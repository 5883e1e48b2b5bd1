"""What GRPO changed on the same shapes: the mean speed of all samples, of what is right, and how many texts differ.

    python experiments/smollm2/gain.py BEFORE AFTER…    # folders of `cudal2 eval source=policy`

The speed is that over the fastest baseline by the device's clock; a kernel that is not right counts as 0 in the first
mean. The best of a shape's samples counts as 1 where it is slower than the library. Intervals are of 95%, by a
bootstrap over the shapes, of the difference to the first folder.
"""

import sys
from pathlib import Path
from statistics import mean

from cudal2.archive import Archive
from cudal2.problem import Problem
from cudal2.report.budget import FALLBACK, estimate, load


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    first = speeds(folders[0])[0]
    columns = (
        "right",
        "mean speed",
        "more than before",
        "shapes with more",
        "mean speed of what is right",
        "best, more",
        "texts",
    )
    print("| | " + " | ".join(columns) + " |\n|" + "---|" * (1 + len(columns)))
    for folder in folders:
        found, texts = speeds(folder)
        if found.keys() != first.keys():
            raise SystemExit(f"{folder} has other shapes than {folders[0]}")
        samples = [speed for speeds in found.values() for speed in speeds]
        right = [speed for speed in samples if speed]
        more = [mean(found[shape]) - mean(first[shape]) for shape in first]
        best = [max(FALLBACK, *found[shape]) - max(FALLBACK, *first[shape]) for shape in first]
        cells = (
            folder.name,
            f"{len(right)} of {len(samples)}",
            f"{mean(samples):.3f}",
            estimate(more),
            f"{sum(one > 0 for one in more)} of {len(more)}",
            f"{mean(right):.3f}",
            estimate(best),
            texts,
        )
        print("| " + " | ".join(map(str, cells)) + " |")


def speeds(folder: Path) -> tuple[dict[Problem, list[float]], int]:
    """For each shape the speed of each sample, and how many sources there are."""
    (shapes,) = load([folder]).values()
    with Archive(folder / "archive.sqlite") as archive:
        texts = {sample.source_hash for sample in archive.samples()}
    return {shape: list(values) for shape, (values,) in shapes.items()}, len(texts)


if __name__ == "__main__":
    main()
