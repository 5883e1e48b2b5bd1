"""Where the kernels of an evaluation come from. All are judged and reported alike.

`source=` in EvalConfig: empty means the archive of the run; `policy` writes new kernels for every shape; a folder may
be an export, another run, or hold sources (see `folders.py`).

What a policy writes is sampled and judged a batch of problems at a time, and archived: a small model takes as long for
one completion as for hundreds, and a large one's engine half a minute to start.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from cudal2 import judging
from cudal2.archive import selection
from cudal2.archive.records import Entry, Origin
from cudal2.archive.selection import Comparable
from cudal2.completion import Found
from cudal2.config import EvalConfig, identity
from cudal2.form import form, kernel_form
from cudal2.policy.learnt import settled
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Verdict, digest
from cudal2.worker.pool.pool import Pool

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
            near = {problem: selection.nearest(kernels, problem, config.neighbours, others) for problem in some}
            return {
                problem: _entered(kernels.distinct(problem, config.finalists) + near[problem], problem, kernels)
                for problem in some
            }

        by_problem = best(problems)
        lacking = [problem for problem, candidates in by_problem.items() if not candidates]
        if ask and lacking:
            judged = ask(lacking)
            new = best([problem for problem in lacking if problem in judged])
            by_problem = {
                problem: new.get(problem, by_problem[problem])
                for problem in problems
                if by_problem[problem] or problem in judged
            }
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


log = logging.getLogger(__name__)

Attempts = list[tuple[str, Verdict | None]]
"""The turns of one series so far: each with its source and verdict (None: the harness failed)."""

Turn = Callable[[Sequence[Attempts], Callable[[int, Found], None]], Sequence[Found]]
"""Writes a turn: for the attempts of each series what a new completion holds. The second argument is called with the
index of a series and what was found for it, while others are still being written."""

Sampler = Callable[[Sequence[Problem], Comparable, Environment], Turn]
"""Makes what writes the turns for these problems, whose prompts may show kernels archived by now. A problem occurs as
often as it needs kernels or, where the policy has turns, series."""


def sampler(config: EvalConfig) -> Sampler:
    """Kernels from `config.policy`, prompted as in training; loaded when first asked. ValueError where it cannot be."""
    from cudal2.policy import prompts, turns, writer

    config = _settled(config)
    policy = writer.make(config.policy, config.prompt, config.target, config.run)

    def begin(problems: Sequence[Problem], kernels: Comparable, environment: Environment) -> Turn:
        def prompt(problem: Problem):
            what = config.prompt, config.policy.chat, problem, kernels
            return prompts.from_archive(*what, environment, config.seed, 0, worker=config.worker)

        shown = {problem: prompt(problem) for problem in dict.fromkeys(problems)}
        firsts = [shown[problem] for problem in problems]
        numbers = {problem: count(0, config.turns.count) for problem in shown}  # samples by their index, as in `asking`
        places = [(problem, next(numbers[problem])) for problem in problems]

        def write(tried: Sequence[Attempts], finished: Callable[[int, Found], None] = lambda *_: None) -> list[Found]:
            turn = len(tried[0])
            names = [f"eval {problem.name} {_series(config)} {first + turn}" for problem, first in places]
            if config.turns.count == 1:
                return policy.write(firsts, names, config.seed, finished)
            attempts = [[turns.Attempt(*attempt) for attempt in some] for some in tried]
            written = [policy.fits(*what).prompt for what in zip(firsts, attempts)]
            return policy.write(written, names, turns.seeded(config.seed, turn), finished)

        return write

    return begin


def _settled(config: EvalConfig) -> EvalConfig:
    """The configuration with the template of its prompts."""
    return settled(config, config.policy.path)


def _series(config: EvalConfig) -> str:
    """What another policy wrote, or this one with another seed, is another series."""
    what = identity(config.policy) | identity(config.prompt) | {"seed": config.seed}
    if config.turns.count > 1:
        what |= identity(config.turns, "turns.")
    return digest(msgspec.json.encode(what, order="sorted").decode())[:12]


def asking(config: EvalConfig, sampler: Sampler, select: Pool, kernels: Comparable, environment: Environment) -> Ask:
    """Has `sampler` write kernels until each problem has `config.samples`; a killed evaluation may have left some.

    Of samples that are one kernel (`cudal2.form`) one is judged, and its verdict is archived for all of them.
    """
    config = _settled(config)
    series = " " + _series(config) if config.source == "policy" else ""
    firsts = range(0, config.samples, config.turns.count)
    here = msgspec.structs.replace(kernels, fingerprint=environment.fingerprint)

    def there(problem: Problem) -> dict[int, str]:
        """Hashes of the problem's samples by their index."""
        samples = kernels.archive.samples("eval", problem.name + series)
        return {sample.origin.index: sample.source_hash for sample in samples}

    def origin(problem: Problem, index: int) -> Origin:
        run, turn = problem.name + series, index % config.turns.count
        return Origin(kind="eval", run=run, step=0, index=index, policy=config.policy.path, turn=turn)

    def judge(lacking: Sequence[tuple[Candidate, Origin]], known: dict[tuple[Problem, str], Verdict]) -> None:
        """Judges and archives these samples; what is found out of a kernel is added to `known`, by its form."""
        alike: dict[tuple[Problem, str], list[tuple[Candidate, Origin]]] = {}
        for candidate, place in lacking:
            made = form(candidate.source) or candidate.missing  # answers without a kernel differ in why
            alike.setdefault((candidate.problem, made), []).append((candidate, place))
        new = {key: some for key, some in alike.items() if key not in known}
        try:
            verdicts = judging.judge(select, kernels.archive, [some[0] for some in new.values()])
            known |= {key: verdict for key, verdict in zip(new, verdicts) if verdict}
        finally:
            for key, some in alike.items():
                for candidate, place in some[key in new :] if key in known else ():
                    verdict = msgspec.structs.replace(known[key], key=candidate.key)
                    kernels.archive.add(verdict, candidate, place)

    def ask(problems: Sequence[Problem]) -> dict[Problem, set[str]]:
        known: dict[tuple[Problem, str], Verdict] = {}
        for problem in problems:
            for index, kernel in there(problem).items():
                if verdict := kernels.archive.verdict(origin(problem, index)):
                    known[problem, form(kernels.archive.source(kernel))] = verdict
        missing = {problem: set(range(config.samples)) - set(there(problem)) for problem in problems}
        # The index of the first sample of each series of turns.
        places = [(problem, first) for problem in problems if missing[problem] for first in firsts]
        write = sampler([problem for problem, _ in places], here, environment) if places else lambda *_: ()
        tried: list[Attempts] = [[] for _ in places]

        def finished(place: int, answer: Found) -> None:
            select.ahead([answer.candidate(places[place][0], kernels.target)])

        for turn in range(config.turns.count):
            asked = [
                (answer.candidate(problem, kernels.target), origin(problem, first + turn))
                for answer, (problem, first) in zip(write(tried, finished), places)
            ]
            lacking = [(candidate, place) for candidate, place in asked if place.index in missing[candidate.problem]]
            try:
                judge(lacking, known)
            except judging.NothingJudged:  # the pool has said why
                break
            if turn + 1 < config.turns.count:
                judged = {problem: there(problem) for problem in missing}
                for some, (candidate, place) in zip(tried, asked):
                    kept = judged[candidate.problem].get(place.index)  # as it was judged, maybe by an earlier start
                    source = kernels.archive.source(kept) if kept else candidate.source
                    some.append((source, kernels.archive.verdict(place)))
        return {problem: set(hashes.values()) for problem in problems if (hashes := there(problem))}

    return ask
