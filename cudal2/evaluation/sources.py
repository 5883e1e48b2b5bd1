"""Where the kernels of an evaluation come from. All are judged and reported alike.

`source=` in EvalConfig: empty means the archive of the run; `policy` writes new kernels for every shape; a folder may
be an export, another run, or hold sources (see `folders.py`).
"""

from collections.abc import Callable, Sequence

import msgspec

from cudal2.archive import selection
from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Entry
from cudal2.config import EvalConfig
from cudal2.form import kernel_form
from cudal2.problem import Problem
from cudal2.records import Candidate

Candidates = dict[Candidate, Problem]
"""Kernels to try for a problem, the most promising first, each with the problem it was made for."""

Ask = Callable[[Sequence[Problem]], dict[Problem, set[str]]]
"""Has a policy write kernels for these problems, judges and archives them, and returns each problem's hashes.

A problem is left out where the harness failed on all its kernels."""

AT_ONCE = 64
"""Shapes per GPU in a batch: while some are measured, compilers work ahead on others."""


def _as_it_is(problem: Problem) -> Problem:
    return problem


def _all_read(problem: Problem) -> str:
    return ""


class Source(msgspec.Struct, frozen=True):
    """`find` returns the kernels of each problem in a batch; a problem that it leaves out is tried again by the next
    evaluation. `asked` maps a problem to the one that is measured in its place, as a kernel may want B in another
    layout. `at_once` is the number of shapes per GPU in a batch. `foreign`: the run's archive does not have these
    kernels yet. `built`: they are built code, and judged as it is. `unread` says which of a problem's files are no
    text, and why; "" for none.
    """

    find: Callable[[Sequence[Problem]], dict[Problem, Candidates]]
    asked: Callable[[Problem], Problem] = _as_it_is
    at_once: int = AT_ONCE
    foreign: bool = False
    built: bool = False
    unread: Callable[[Problem], str] = _all_read


def archived(kernels: Comparable, config: EvalConfig, ask: Ask | None = None) -> Source:
    """The archive's best kernels for a problem and its neighbours; where it has none, those that `ask` adds."""

    def find(problems: Sequence[Problem]) -> dict[Problem, Candidates]:
        def best(some: Sequence[Problem]) -> dict[Problem, Candidates]:
            others = kernels.problems() if config.neighbours else []
            near = {one: selection.nearest(kernels, one, config.neighbours, others) for one in some}
            return {one: _entered(kernels.distinct(one, config.finalists) + near[one], one, kernels) for one in some}

        by_problem = best(problems)
        lacking = [problem for problem, candidates in by_problem.items() if not candidates]
        if ask and lacking:
            judged = ask(lacking)
            new = best([problem for problem in lacking if problem in judged])
            by_problem = {one: new.get(one, by_problem[one]) for one in problems if by_problem[one] or one in judged}
        return by_problem

    return Source(find)


def written(kernels: Comparable, config: EvalConfig, ask: Ask) -> Source:
    """The best of the kernels that `ask` has written for each problem, whatever else is archived."""

    def find(problems: Sequence[Problem]) -> dict[Problem, Candidates]:
        return {
            problem: _entered(
                [entry for entry in kernels.ranked(problem) if entry.kernel_hash in own],
                problem,
                kernels,
                config.finalists,
            )
            for problem, own in ask(problems).items()
        }

    return Source(find)


def _entered(entries: Sequence[Entry], problem: Problem, kernels: Comparable, limit: int | None = None) -> Candidates:
    """The first `limit` of these kernels that differ in what is built."""
    by_form: dict[str, tuple[Candidate, Problem]] = {}
    for entry in entries:
        candidate = Candidate(entry.source, problem, kernels.target, edit=entry.edit)
        by_form.setdefault(kernel_form(entry.source, entry.edit), (candidate, entry.verdict.problem))
    return dict(list(by_form.values())[:limit])
