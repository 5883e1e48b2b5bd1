"""Who has children in a search that breeds, whatever it breeds, and what such a search begins with.

Tournaments among the best, as autotuners hold them (Vasilache et al., Tensor Comprehensions, arXiv:1802.04730), and
probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator probabilities, GECCO 2005).
"""

import random
from collections import Counter
from collections.abc import Sequence

from cudal2.config import SearchConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.search import known, prior
from cudal2.search.proposer import Task, Trial, Trials
from cudal2.search.settings import Setting

EXPLORE = 0.1
"""Share of an evolved generation that is drawn at random all the same; also shared out among what is matched."""

ELITE = 0.25
"""This share of the correct kernels counts as success in probability matching."""

PARENTS = 8
"""Only so many of the best have children; each parent is the best of `TOURNAMENT` drawn from them."""

TOURNAMENT = 3


def tournament(count: int, rng: random.Random) -> int:
    """The winner among so many contestants, the best of whom is number 0."""
    return min(rng.randrange(count) for _ in range(TOURNAMENT))


def elite(correct: int) -> int:
    """So many of that number of correct kernels count as success."""
    return max(1, round(ELITE * correct))


def matched(names: Sequence[str], tried: Sequence[str], succeeded: Sequence[str], rng: random.Random) -> str:
    """One of `names`: in proportion to the share of its trials that succeeded, plus a minimum.

    `tried` and `succeeded` hold a name for each trial. One that was not tried yet counts as a success.
    """
    trials, successes = Counter(tried), Counter(succeeded)
    quality = [successes[name] / trials[name] if trials[name] else 1.0 for name in names]
    total = sum(quality) or 1.0
    weights = [EXPLORE / len(names) + (1 - EXPLORE) * value / total for value in quality]
    return rng.choices(names, weights)[0]


def start(
    config: SearchConfig,
    device: str,
    problem: Problem,
    families: Sequence[Family],
    generation: int,
    rng: random.Random,
) -> list[Setting]:
    """What `search.prior` says that a search begins with; nothing in later generations.

    `device` is the environment's. Raises ValueError where NVIDIA's heuristics are asked for and cannot answer.
    """
    if generation == 0 and config.search.prior == "known":
        return known.settings(config.target, problem, families)
    if generation == 0 and config.search.prior == "nvidia":
        advice = prior.advise(problem, device, max(1, config.search.generation // 2))
        return prior.follow(advice, problem, families, rng)
    return []


def lent(task: Task, trials: Trials) -> list[Trial]:
    """The lenders' best kernels that this problem has not tried, each as its lender's trial."""
    tried = {trial.source_hash for trial in trials[task.problem]}
    best: dict[str, Trial] = {}
    for lender in task.lenders:
        if correct := [trial for trial in trials[lender] if trial.low]:
            top = max(correct, key=lambda trial: trial.low)
            best.setdefault(top.source_hash, top)
    return [trial for source_hash, trial in best.items() if source_hash not in tried]
