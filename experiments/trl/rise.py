"""What 20 steps taught, by either trainer: python experiments/trl/rise.py FOLDER, which holds what learn.sh left there.

By how much reward and speedup (failures as 0) rose from the first to the last third of the steps, on the same shapes,
with a 95% interval by a bootstrap over the steps; then the mean over the seeds, with Student's interval over them.
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from cudal2.archive.records import Sample
from cudal2.archive.store import Archive
from cudal2.report import steps

A_STEP = 16
"""Kernels of a step, by learn.sh."""
STUDENT = {2: 12.706, 3: 4.303}
"""The two-sided 95% quantile of t for so many seeds."""

Value = Callable[[Sample], float]
VALUES: dict[str, Value] = {
    "reward": lambda sample: sample.origin.reward or 0.0,
    "speedup": lambda sample: sample.speedup or 0.0,
}


def learned(folder: Path) -> list[list[Sample]]:
    """The samples of each step. A judge's are those of its requests in turn: TRL asks for a step's all at once."""
    with Archive.of(folder, create=False) as archive:
        samples = list(archive.samples("train")) or list(archive.samples("serve"))
    samples.sort(key=lambda sample: (sample.origin.step, sample.origin.index))
    return [samples[start : start + A_STEP] for start in range(0, len(samples), A_STEP)]


def stepped(run: list[list[Sample]], value: Value) -> list[steps.Step]:
    """As the report has them, with this value where it has speedups."""
    return [steps.Step(number, (), Counter(), by_problem(samples, value)) for number, samples in enumerate(run)]


def by_problem(step: Sequence[Sample], value: Value) -> steps.ByProblem:
    values = defaultdict(list)
    for sample in step:
        values[sample.problem.name].append(value(sample))
    return {name: tuple(some) for name, some in values.items()}


def main() -> None:
    folder = Path(sys.argv[1])
    for arm, run in (("trl", "judge"), ("ours", "ours")):
        runs = [learned(path) for path in sorted(folder.glob(f"{run}-?"))]
        for name, value in VALUES.items():
            rises = []
            for seed, samples in enumerate(runs):
                learnt = stepped(samples, value)
                first, last = steps.rise(learnt)
                gained = steps.gain(learnt)
                assert gained, "too few steps"
                middle, low, high = gained
                rises.append(middle)
                print(
                    f"{arm} seed {seed}: {name} {first:.2f} -> {last:.2f}  rise {middle:+.2f} [{low:+.2f}, {high:+.2f}]"
                )
            if len(rises) in STUDENT:
                half = STUDENT[len(rises)] * statistics.stdev(rises) / len(rises) ** 0.5
                middle = statistics.fmean(rises)
                print(f"{arm}, {len(rises)} seeds: {name} {middle:+.2f} [{middle - half:+.2f}, {middle + half:+.2f}]")


if __name__ == "__main__":
    main()
