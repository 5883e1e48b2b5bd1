"""One generation of one problem: a function of the configuration and of the generations before it.

So a search that was killed proposes the same generation again, and judges only the kernels still missing.
"""

import sys
from collections.abc import Sequence
from itertools import count, groupby

from cudal2.config import SearchMethodConfig
from cudal2.records import Candidate
from cudal2.search.proposer import Proposer, Task, Trial, Trials


def affordable_now(search: SearchMethodConfig, earlier: Sequence[Trial]) -> int:
    """The size of a problem's next generation after these earlier trials; 0 or less where the budget is spent."""
    return min(search.generation, (search.kernels or sys.maxsize) - len(earlier))


def missing(
    search: SearchMethodConfig, proposer: Proposer, task: Task, generation: int, trials: Trials
) -> dict[Candidate, Trial] | None:
    """The candidates of that generation still to be judged, each with its trial-to-be; None where the search has ended.

    `trials` are those of the problem and of its lenders; the proposer sees only those of earlier generations. A
    search ends when its budget is spent or the proposer has nothing left to try.
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
    # If the proposer's code has changed since, it proposes other candidates; those already judged keep their places.
    taken = {trial.index for trial in here}
    places = (index for index in count() if index not in taken)
    return {
        candidate: Trial(proposed[candidate], generation, index, candidate.kernel_hash)
        for candidate, index in zip(new, places)
    }


def affordable(search: SearchMethodConfig, trials: Sequence[Trial]) -> list[Trial]:
    """The first of a problem's trials, as many as this budget pays for: an earlier start may have had a larger one."""
    found: list[Trial] = []
    for _, generation in groupby(trials[: search.kernels or None], key=lambda trial: trial.generation):
        if 0 < search.seconds <= seconds(found):
            break
        found += generation
    return found


def seconds(trials: Sequence[Trial]) -> float:
    """Wall time that these trials took, in seconds."""
    return sum(trial.seconds for trial in trials)
