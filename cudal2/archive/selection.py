"""Which kernels of an archive are worth showing or trying: contrasting exemplars, neighbours' best, failures."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Entry
from cudal2.problem import Problem
from cudal2.records import Status

EXPLAINED = (Status.REJECTED, Status.COMPILE_ERROR, Status.PLAN_ERROR, Status.LAUNCH_ERROR)
"""Failures whose log tells an author what to change."""


def by_distance(problem: Problem, others: Sequence[Problem]) -> list[Problem]:
    """Those of the same layout and accumulator, nearest first: Euclidean in (log M, log N, log K, 2 log M·N).

    What is fast depends on the number of tiles more than on any side of C: on an H200 the best 12 settings of the
    nearest problems came within 1.8% of the best known, without the last term within 2.8%.
    """

    def distance(other: Problem) -> float:
        m, n, k = (math.log2(a / b) for a, b in ((problem.m, other.m), (problem.n, other.n), (problem.k, other.k)))
        return math.hypot(m, n, k, 2 * (m + n))

    alike = (problem.layout, problem.accumulate)
    return sorted((p for p in others if (p.layout, p.accumulate) == alike), key=distance)


def nearest(
    kernels: Comparable, problem: Problem, limit: int, problems: Sequence[Problem] | None = None
) -> list[Entry]:
    """Best kernels of up to `limit` other problems of the same layout and accumulator, nearest first.

    `problems` are all that have a correct kernel; whoever asks for many knows them.
    """
    others = [p for p in by_distance(problem, kernels.problems() if problems is None else problems) if p != problem]
    bests = (kernels.best(other) for other in others[:limit])
    return [entry for entry in bests if entry is not None]


def exemplars(kernels: Comparable, problem: Problem, count: int, rng: random.Random) -> list[Entry]:
    """Up to `count` correct, timed kernels of contrasting speed, fastest first, to be shown in a prompt: those of the
    problem, and of its neighbours while there are too few."""
    found: dict[str, Entry] = {}
    for other in by_distance(problem, kernels.problems()):
        if len(found) >= count:
            break
        for entry in kernels.ranked(other):
            # What was only checked has no speed to contrast, and an edited kernel's is not its source's.
            if entry.verdict.timing and entry.edit is None:
                found.setdefault(entry.source, entry)
    return contrasting(list(found.values()), count, rng)


def contrasting(entries: list[Entry], count: int, rng: random.Random) -> list[Entry]:
    """Up to `count` of these timed kernels, fastest first.

    They are ranked, cut into `count` buckets of equal size, and one is drawn from each: good, medium, slow; after the
    contrastive exemplars of CUDA-L1 (arXiv:2507.14111).
    """
    entries = sorted(entries, key=lambda entry: entry.low, reverse=True)
    count = min(count, len(entries))
    edges = [len(entries) * i // count for i in range(count + 1)] if count else []
    return [rng.choice(entries[low:high]) for low, high in pairwise(edges)]


def failures(kernels: Comparable, problem: Problem, count: int) -> list[Entry]:
    """The latest `count` kernels that could not be built or launched, with the build's `log`: those of the
    problem first, then those of its neighbours."""
    found: list[Entry] = []
    for other in by_distance(problem, kernels.problems(EXPLAINED)):
        if len(found) < count:
            found += kernels.latest(other, EXPLAINED, count - len(found))
    return found
