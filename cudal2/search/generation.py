"""One generation of one problem: a function of the configuration and of the generations before it.

It is the same when a search that was killed comes to it again, so that only what is missing of it need be judged.
"""

import sys
from collections.abc import Sequence
from itertools import count, groupby

from cudal2.config import SearchMethodConfig
from cudal2.records import Candidate
from cudal2.search.proposer import Proposer, Task, Trial, Trials


def affordable_now(search: SearchMethodConfig, earlier: Sequence[Trial]) -> int:
    """How many kernels a problem's generation has after these trials of earlier ones; 0 or less where none is left."""
    return min(search.generation, (search.kernels or sys.maxsize) - len(earlier))


def missing(
    search: SearchMethodConfig, proposer: Proposer, task: Task, generation: int, trials: Trials
) -> dict[Candidate, Trial] | None:
    """What is still to be judged of that generation, each as the trial it will be; None where the search has ended.

    `trials` are those of the problem and of its lenders; the proposer is shown the ones of earlier generations only. A
    search ends when its budget is spent or nothing is left to try.
    """
    earlier = {
        problem: [trial for trial in trials[problem] if trial.generation < generation]
        for problem in (task.problem, *task.lenders)
    }
    before = earlier[task.problem]
    here = [trial for trial in trials[task.problem] if trial.generation == generation]
    size = affordable_now(search, before)
    if size <= 0 or 0 < search.seconds <= seconds(before):
        return None
    later = len(trials[task.problem]) > len(before) + len(here)
    if later or len(here) >= size:
        return {}
    proposed = proposer.propose(task, earlier, generation, size)
    if not proposed:
        return None
    judged = {trial.source_hash for trial in here}
    new = [candidate for candidate in proposed if candidate.kernel_hash not in judged][: size - len(here)]
    # A proposer that was changed meanwhile proposes otherwise; what was judged keeps its place all the same.
    taken = {trial.index for trial in here}
    places = (index for index in count() if index not in taken)
    return {
        candidate: Trial(proposed[candidate], generation, index, candidate.kernel_hash)
        for candidate, index in zip(new, places)
    }


def affordable(search: SearchMethodConfig, trials: Sequence[Trial]) -> list[Trial]:
    """Those of a problem's trials that this budget pays for: of a search that once had a larger one, the first."""
    found: list[Trial] = []
    for _, generation in groupby(trials[: search.kernels or None], key=lambda trial: trial.generation):
        if 0 < search.seconds <= seconds(found):
            break
        found += generation
    return found


def seconds(trials: Sequence[Trial]) -> float:
    """Wall time that went into judging them."""
    return sum(trial.seconds for trial in trials)
