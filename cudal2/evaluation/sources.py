"""Where the kernels of an evaluation come from. All are judged alike, and reported alike.

`source=` in EvalConfig: nothing is the archive of the run, `policy` writes new ones for every shape, and a folder holds
kernels: what `cudal2 export` wrote, another run's archive, or sources (see `folders.py`).
"""

from collections.abc import Callable, Sequence

import msgspec

from cudal2.archive import selection
from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Entry
from cudal2.config import EvalConfig
from cudal2.problem import Problem
from cudal2.records import Candidate

Candidates = dict[Candidate, Problem]
"""Kernels worth trying for a problem, the likeliest first, with the problem each was made for."""

Ask = Callable[[Sequence[Problem]], dict[Problem, set[str]]]
"""Has a policy write kernels for these problems, judged into the archive: the hashes of each problem's.

A problem of whose kernels the harness could judge none is left out."""

AT_ONCE = 64
"""Shapes a GPU in a batch: while some are measured, compilers work ahead on others."""


def _as_it_is(problem: Problem) -> Problem:
    return problem


class Source(msgspec.Struct, frozen=True):
    """`find` gives each of a batch's problems its kernels; one that it leaves out could not be asked about, and is
    tried again by the next evaluation. `asked` is the problem that stands in for another: a kernel may want its B
    stored otherwise. `at_once` are a batch's shapes for each GPU. `foreign`: the run's archive does not know these
    kernels yet. `built`: they are code already, and judged as they are.
    """

    find: Callable[[Sequence[Problem]], dict[Problem, Candidates]]
    asked: Callable[[Problem], Problem] = _as_it_is
    at_once: int = AT_ONCE
    foreign: bool = False
    built: bool = False


def archived(kernels: Comparable, config: EvalConfig, ask: Ask | None = None) -> Source:
    """The archive's best for a problem and its neighbours; where it has none, what `ask` then puts there."""

    def find(problems: Sequence[Problem]) -> dict[Problem, Candidates]:
        def best(some: Sequence[Problem]) -> dict[Problem, Candidates]:
            others = kernels.problems() if config.neighbours else []
            near = {one: selection.nearest(kernels, one, config.neighbours, others) for one in some}
            return {one: _entered(kernels.ranked(one, config.finalists) + near[one], one, kernels) for one in some}

        found = best(problems)
        lacking = [problem for problem, candidates in found.items() if not candidates]
        if ask and lacking:
            judged = ask(lacking)
            new = best([problem for problem in lacking if problem in judged])
            found = {one: new.get(one, found[one]) for one in problems if found[one] or one in judged}
        return found

    return Source(find)


def written(kernels: Comparable, config: EvalConfig, ask: Ask) -> Source:
    """The best of what `ask` has written for each problem, whatever else is archived."""

    def find(problems: Sequence[Problem]) -> dict[Problem, Candidates]:
        return {
            problem: _entered(
                [entry for entry in kernels.ranked(problem) if entry.kernel_hash in own][: config.finalists],
                problem,
                kernels,
            )
            for problem, own in ask(problems).items()
        }

    return Source(find)


def _entered(entries: Sequence[Entry], problem: Problem, kernels: Comparable) -> Candidates:
    found: Candidates = {}
    for entry in entries:
        candidate = Candidate(entry.source, problem, kernels.target, edit=entry.edit)
        found.setdefault(candidate, entry.verdict.problem)
    return found
