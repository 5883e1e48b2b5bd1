"""What the genetic searches share: how parents and operators are selected, and what one problem lends another.

Parents are selected by tournament, as in autotuners (Vasilache et al., Tensor Comprehensions, arXiv:1802.04730),
operators by probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator probabilities,
GECCO 2005).
"""

import random
from collections import Counter
from collections.abc import Sequence

from cudal2.search.proposer import Task, Trial, Trials

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


def lent(task: Task, trials: Trials) -> list[Trial]:
    """The best kernel of each lender that this problem has not tried yet, as the lender's trial."""
    tried = {trial.source_hash for trial in trials[task.problem]}
    best: dict[str, Trial] = {}
    for lender in task.lenders:
        if correct := [trial for trial in trials[lender] if trial.low]:
            top = max(correct, key=lambda trial: trial.low)
            best.setdefault(top.source_hash, top)
    return [trial for source_hash, trial in best.items() if source_hash not in tried]
