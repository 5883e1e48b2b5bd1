"""The samples of each training step, and their statistics for a page, a picture and a table of runs.

All speedups are over the fastest baseline; a sample without a correct kernel counts as 0 in a mean.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cudal2.archive.records import Kind, Sample
from cudal2.archive.store import Archive
from cudal2.records import Status

TRAINING: tuple[Kind, ...] = ("sft", "train")
"""Samples of these kinds make the learning curve."""
FEWEST = 6
"""Steps, below which nothing is said of a rise."""
DRAWS = 1000
"""How often a rise is computed from other steps, drawn from those that there are."""


ByProblem = dict[str, tuple[float, ...]]
"""Speedups of a step's samples by the name of their problem."""


class Step(msgspec.Struct, frozen=True):
    """The samples of one training step: rewards, speedups (0 for a failure) by problem, and statuses."""

    step: int
    rewards: tuple[float, ...]
    statuses: Counter[Status]
    by_problem: ByProblem

    @property
    def speedups(self) -> tuple[float, ...]:
        return tuple(value for values in self.by_problem.values() for value in values)

    @property
    def working(self) -> tuple[float, ...]:
        return tuple(value for value in self.speedups if value > 0)


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of no values, which a plot leaves out."""
    return sum(values) / len(values) if values else math.nan


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of `values` lies (nearest rank); NaN of nothing."""
    return sorted(values)[round(share * (len(values) - 1))] if values else math.nan


def thirds(steps: Sequence[Step]) -> tuple[Sequence[Step], Sequence[Step]]:
    """The first and the last third of the steps, at least one step each."""
    size = max(len(steps) // 3, 1)
    return steps[:size], steps[-size:]


def rise(steps: Sequence[Step]) -> tuple[float, float]:
    """Mean speedup over all samples in the first and in the last third of the steps."""
    first, last = ([value for step in part for value in step.speedups] for part in thirds(steps))
    return mean(first), mean(last)


def gain(steps: Sequence[Step]) -> tuple[float, float, float] | None:
    """By how much the mean speedup rose from the first to the last third of the steps, with a 95% interval.

    It is the mean over the problems that both thirds had, for a step with easy problems shows no progress. The interval
    comes from a bootstrap over steps (B. Efron, Annals of Statistics 7, 1979). None of fewer than FEWEST steps, or
    where no problem came in both thirds.
    """
    first, last = ([step.by_problem for step in part] for part in thirds(steps))
    difference = _difference(first, last)
    if len(steps) < FEWEST or difference is None:
        return None
    rng = random.Random(0)
    drawn = [_difference(rng.choices(first, k=len(first)), rng.choices(last, k=len(last))) for _ in range(DRAWS)]
    known = [one for one in drawn if one is not None]
    return difference, quantile(known, 0.025), quantile(known, 0.975)


def said(steps: Sequence[Step]) -> str:
    """`+0.12 [0.03, 0.21]`, with a digit more where the interval is narrow, and what a reader should think of it where
    that is no rise for sure."""
    if (bounds := gain(steps)) is None:
        return f"too few steps to tell ({len(steps)})"
    middle, low, high = bounds
    unsure = "" if low > 0 or high < 0 else ", too few steps to be sure"
    digits = 2 if high - low > 0.05 else 3
    return f"{middle:+.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]{unsure}"


def _difference(
    first: Sequence[dict[str, tuple[float, ...]]], last: Sequence[dict[str, tuple[float, ...]]]
) -> float | None:
    """Last minus first mean, in the mean over the problems that both have."""
    means = []
    for part in (first, last):
        together: defaultdict[str, list[float]] = defaultdict(list)
        for step in part:
            for problem, values in step.items():
                together[problem] += values
        means.append({problem: mean(values) for problem, values in together.items()})
    before, after = means
    both = [after[problem] - before[problem] for problem in before if problem in after]
    return mean(both) if both else None


def training(archive: Archive, folder: Path) -> list[Sample]:
    """The samples of training in the folder's archive: of the run named like the folder, or else of the last run."""
    runs = defaultdict(list)
    for kind in TRAINING:
        for sample in archive.samples(kind):
            runs[sample.origin.run].append(sample)
    return runs.get(folder.resolve().name) or (list(runs.values())[-1] if runs else [])


def of(samples: Iterable[Sample]) -> list[Step]:
    """The samples grouped by step."""
    steps = defaultdict(list)
    for sample in samples:
        steps[sample.origin.step].append(sample)
    return [
        Step(
            step,
            tuple(s.origin.reward for s in steps[step] if s.origin.reward is not None),
            Counter(s.status for s in steps[step]),
            _by_problem(steps[step]),
        )
        for step in sorted(steps)
    ]


def _by_problem(samples: Sequence[Sample]) -> ByProblem:
    speeds = defaultdict(list)
    for sample in samples:
        speeds[sample.problem.name].append(sample.speedup or 0.0)
    return {name: tuple(values) for name, values in speeds.items()}


def curves(folders: Sequence[Path]) -> dict[str, list[Step]]:
    """The training steps of each run by its name, or by its path where another has that name. Raises ValueError for a
    run that has none, and where the runs were measured in environments that do not compare."""
    runs: dict[str, list[Step]] = {}
    fingerprints: set[str] = set()
    for folder in folders:
        with Archive.of(folder, create=False) as archive:
            samples = training(archive, folder)
        fingerprints |= {sample.fingerprint for sample in samples}
        name = folder.resolve().name
        runs[name if name not in runs else str(folder)] = of(samples)
        if not samples:
            raise ValueError(f"{folder} holds no training samples yet; train first")
    if len(fingerprints) > 1:
        raise ValueError("these runs were measured in different environments and do not compare")
    return runs


def drawn(steps: Sequence[Step]) -> dict[str, Any]:
    """The columns of a page's learning curves, a value for each step; None where a step has none.

    `rewards` and `working` are mean, 10th and 90th percentile, `all` means over all samples, `best` the best so far,
    `statuses` the share of each status that occurs, correct kernels first.
    """
    best = 0.0
    bests = [best := max(best, *step.speedups, 0.0) for step in steps]
    occurring = [status for status in Status if any(step.statuses[status] for step in steps)]
    return {
        "step": [step.step for step in steps],
        "rewards": _spread([step.rewards for step in steps]),
        "working": _spread([step.working for step in steps]),
        "all": [mean(step.speedups) for step in steps],
        "best": bests,
        "statuses": {
            status.value: [step.statuses[status] / step.statuses.total() for step in steps] for status in occurring
        },
    }


def _spread(values: Sequence[Sequence[float]]) -> dict[str, list[float | None]]:
    """Mean, 10th and 90th percentile of each step's values; None instead of NaN, which JSON does not have."""
    columns = {"mean": mean, "low": lambda v: quantile(v, 0.1), "high": lambda v: quantile(v, 0.9)}
    return {name: [column(v) if v else None for v in values] for name, column in columns.items()}


def table(folders: Sequence[Path]) -> str:
    """In Markdown: steps, kernels, mean speedup and mean reward in the first and the last third of the steps, the rise
    on the same problems, and the share of correct kernels. Raises ValueError for a run without training samples, and
    where they were measured in environments that do not compare.
    """
    lines = [["run", "steps", "kernels", "mean speedup, first → last third", "mean reward", "rise", "correct"]]
    lines.append(["---"] * len(lines[0]))
    for name, run in curves(folders).items():
        pairs = []
        for values in ("speedups", "rewards"):
            first, last = (mean([value for step in part for value in getattr(step, values)]) for part in thirds(run))
            pairs.append(f"{first:.2f} → {last:.2f}")
        shares = []
        for part in thirds(run):
            total = sum((step.statuses for step in part), Counter())
            shares.append(f"{total[Status.OK] / max(total.total(), 1):.0%}")
        kernels = sum(step.statuses.total() for step in run)
        lines.append([name, str(len(run)), str(kernels), *pairs, said(run), " → ".join(shares)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
