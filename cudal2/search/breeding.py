"""What the genetic searches share: how parents and operators are selected, and which kernels a search begins with.

Parents are selected by tournament, as in autotuners (Vasilache et al., Tensor Comprehensions, arXiv:1802.04730),
operators by probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator probabilities,
GECCO 2005).
"""

import random
from collections import Counter
from collections.abc import Sequence

from cudal2.config import SearchConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.search import cost, known, prior
from cudal2.search.proposer import Task, Trial, Trials
from cudal2.search.settings import Setting

EXPLORE = 0.1
"""Share of a generation that is drawn at random; in probability matching, the probability that all names share."""

ELITE = 0.25
"""In probability matching, the best kernels count as successes: this share of the correct ones."""

PARENTS = 8
"""Parents come from so many of the best kernels; each is the best of `TOURNAMENT` drawn from them."""

TOURNAMENT = 3


def tournament(count: int, rng: random.Random) -> int:
    """The index of the winner among `count` contestants that are sorted, the best first."""
    return min(rng.randrange(count) for _ in range(TOURNAMENT))


def elite(correct: int) -> int:
    """How many of so many correct kernels count as successes."""
    return max(1, round(ELITE * correct))


def matched(names: Sequence[str], tried: Sequence[str], succeeded: Sequence[str], rng: random.Random) -> str:
    """One of `names`, drawn in proportion to its rate of success, plus a minimum.

    `tried` and `succeeded` hold one name per trial. A name that was not tried yet counts as always successful.
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
    """The settings that a search begins with, by `search.prior`; none after generation 0.

    `device` is the environment's. Raises ValueError where NVIDIA's heuristics are asked for but missing, or do not
    know the device, and where a model is to order known settings but its library is missing.
    """
    if generation == 0 and config.search.prior == "known":
        found = known.settings(config.target, problem, families)
        return cost.order(config.target, device, problem, found) if config.search.order == "cost" else found
    if generation == 0 and config.search.prior == "nvidia":
        advice = prior.advise(problem, device, max(1, config.search.generation // 2))
        return prior.follow(advice, problem, families, rng)
    return []


def lent(task: Task, trials: Trials) -> list[Trial]:
    """The best kernel of each lender that this problem has not tried yet, as the lender's trial."""
    tried = {trial.source_hash for trial in trials[task.problem]}
    best: dict[str, Trial] = {}
    for lender in task.lenders:
        if correct := [trial for trial in trials[lender] if trial.low]:
            top = max(correct, key=lambda trial: trial.low)
            best.setdefault(top.source_hash, top)
    return [trial for source_hash, trial in best.items() if source_hash not in tried]
