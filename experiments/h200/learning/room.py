"""What GRPO can learn from in a run: how far the kernels of its groups lie apart, and how much of that is noise.

    python experiments/h200/learning/room.py runs/any-0

A group is what the policy wrote for one problem in one step. Its room is the fastest kernel over the mean of its right
ones, in logarithms: what the policy would gain there if it wrote that one alone. Means have 95% intervals, groups drawn
anew. The noise of one measurement is half of its own interval, the lower half.
"""

import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from cudal2.archive.records import Sample
from cudal2.archive.store import Archive
from cudal2.report.budget import estimate

ROWS = ((1, 16), (17, 64), (65, 1024), (1025, 1 << 20))


def groups(folder: Path) -> list[list[Sample]]:
    found = defaultdict(list)
    with Archive.of(folder, create=False) as archive:
        for sample in archive.samples("train"):
            found[sample.origin.step, sample.problem].append(sample)
    return list(found.values())


def mean(values: list[float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*estimate(values))


def room(group: list[Sample]) -> float:
    logs = [math.log(sample.speedup) for sample in group if sample.speedup]
    return max(logs) - float(np.mean(logs)) if logs else 0.0


def main() -> None:
    every = [group for folder in sys.argv[1:] for group in groups(Path(folder))]
    samples = [sample for group in every for sample in group]
    right = [sample for sample in samples if sample.speedup and sample.low]
    distinct = np.mean([len({sample.source_hash for sample in group}) for group in every])
    noise = np.median([math.log((sample.speedup or 1.0) / (sample.low or 1.0)) for sample in right])
    print(f"{len(every)} groups, {len(right)} of {len(samples)} samples right, {distinct:.1f} distinct in a group")
    print(f"noise of a measurement {noise:.3f}; room {mean([room(group) for group in every])}")
    for least, most in ROWS:
        some = [room(group) for group in every if least <= group[0].problem.m <= most]
        print(f"  {least} to {most} rows, {len(some)} groups: room {mean(some)}")


if __name__ == "__main__":
    main()
