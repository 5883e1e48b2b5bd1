"""The archive's best kernels, measured once more and more strictly, shape by shape.

A kernel is the archive's best partly by luck, so the measurement that selected it is never the one reported:
`run` selects with one pool and reports what another, stricter one (`strict`) finds. Results go to
`RUN/eval/results.json` (everything) and `results.csv` (a row for each shape and baseline) after every shape,
each file replaced atomically; a killed evaluation continues where it stopped.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cudal2 import selection
from cudal2.archive import ANY, Archive, Origin
from cudal2.config import EvalConfig, WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Timing, Verdict, digest
from cudal2.results import NOTHING_ARCHIVED, Results, Row, by_decade, load, save, summarise
from cudal2.source import extract
from cudal2.target import find

Sampler = Callable[[Problem], Sequence[str]]
"""New sources for a problem from a policy ("" where a completion holds none)."""


_PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}


class Judge(Protocol):
    """What evaluation needs of `worker.pool.Pool`."""

    def evaluate(self, candidates: Sequence[Candidate]) -> list[Verdict | None]: ...

    def environment(self) -> Environment: ...


def strict(config: WorkerConfig) -> WorkerConfig:
    """The worker that reports: twice the batch, three times the pairs, half the interval of `config`."""
    return msgspec.structs.replace(
        config,
        batch_ms=2 * config.batch_ms,
        min_pairs=3 * config.min_pairs,
        max_pairs=3 * config.max_pairs,
        precision=config.precision / 2,
    )


def run(
    folder: Path,
    problems: Sequence[Problem],
    judge: Judge,
    select: Judge,
    archive: Archive,
    *,
    target: str = "cpu",
    neighbours: int = 2,
    anywhere: bool = False,
    sampler: Sampler | None = None,
    limit: int | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Evaluate the first `limit` of `problems` and return their rows, in order; says how far it is on `console`.

    The archive's best kernel of each problem competes with the best of its `neighbours` nearest other
    problems, timed by `select`; `judge` (a pool made from `strict(config)`) measures the winner. Where nothing
    is archived near it, `sampler`, if given, writes new kernels, which join the archive.
    A problem whose row is there already, for this environment and the same kernels, is skipped; one
    whose measurement the harness could not complete gets no row and is tried again by the next evaluation.

    Kernels judged in another environment than this are tried only where `anywhere` says so. Raises ValueError
    where the archive holds no others, HarnessFault where the results cannot be read or written.
    """
    console = console or Console()
    environment = judge.environment()
    known = archive.environments()
    if not anywhere and known and environment.fingerprint not in known:
        raise ValueError(_elsewhere(list(known.values())[-1], environment))
    source_of = ANY if anywhere else environment.fingerprint
    results = load(folder)
    rows = {(row.problem, row.fingerprint): row for row in results.rows}
    environments = results.environments | {environment.fingerprint: environment}
    found: list[Row] = []
    chosen = list(dict.fromkeys(problems))[:limit]
    bar = track(chosen, "eval", console=console, disable=not console.is_terminal)
    for number, problem in enumerate(bar, 1):
        place = (problem, environment.fingerprint)
        candidates = _candidates(problem, archive, target, source_of, neighbours)
        if sampler and not candidates:
            _sample(problem, sampler, select, archive, target)
            candidates = _candidates(problem, archive, target, source_of, neighbours)
        row = rows.get(place)
        if row is None or row.considered != _hashes(candidates):
            row = _measure(problem, candidates, target, environment, judge, select)
            if row is not None:
                rows[place] = row
                save(folder, Results(environments, tuple(rows.values())))
        if row is not None:
            found.append(row)
        if not console.is_terminal:
            console.print(f"eval {number}/{len(chosen)}  {describe(problem, row)}", **_PLAIN)
    save(folder, Results(environments, tuple(rows.values())))
    return found


def _elsewhere(there: Environment, here: Environment) -> str:
    fields = there.__struct_fields__
    pairs = ((name, getattr(there, name), getattr(here, name)) for name in fields)
    differs = "; ".join(f"{name}: {theirs}, here {ours}" for name, theirs, ours in pairs if theirs != ours)
    return (
        f"every kernel in the archive was judged in another environment ({differs}); set the worker up as it "
        "was, or measure those kernels here with anywhere=true"
    )


def sampler(config: EvalConfig) -> Sampler:
    """`config.samples` kernels a problem from `config.policy`, which is loaded when first asked."""
    from cudal2 import policy
    from cudal2.policy import prompts, sampling

    target = find(config.target)
    loaded = cache(partial(policy.load, config.policy))

    def sample(problem: Problem) -> list[str]:
        prompt = prompts.render(config.prompt, config.policy.chat, problem, target)
        completions = sampling.sample(*loaded(), [prompt] * config.samples, config.policy, config.seed)
        return [extract(completion, target) or "" for completion in completions]

    return sample


def _candidates(
    problem: Problem, archive: Archive, target: str, fingerprint: str, neighbours: int
) -> dict[str, Problem]:
    """Sources worth trying, the problem's own best first, with the problem each was archived for."""
    own = archive.best(problem, target, fingerprint)
    near = selection.nearest(archive, problem, target, fingerprint, neighbours) if neighbours else []
    found: dict[str, Problem] = {}
    for entry in ([own] if own else []) + near:
        found.setdefault(entry.source, entry.verdict.problem)
    return found


def _hashes(candidates: dict[str, Problem]) -> tuple[str, ...]:
    return tuple(sorted(digest(source) for source in candidates))


def _sample(problem: Problem, sampler: Sampler, select: Judge, archive: Archive, target: str) -> None:
    run = f"eval {problem.name}"
    if any(archive.samples(run)):
        return  # a killed evaluation asked already
    new = [Candidate(source, problem, target) for source in sampler(problem)]
    for index, (candidate, verdict) in enumerate(zip(new, select.evaluate(new))):
        if verdict is not None:
            archive.add(verdict, candidate, Origin(run=run, step=0, index=index))


def _measure(
    problem: Problem,
    candidates: dict[str, Problem],
    target: str,
    environment: Environment,
    judge: Judge,
    select: Judge,
) -> Row | None:
    considered = _hashes(candidates)
    row = partial(Row, problem=problem, fingerprint=environment.fingerprint, considered=considered)
    if not candidates:
        return row(status=NOTHING_ARCHIVED)
    source = next(iter(candidates))
    if len(candidates) > 1:
        verdicts = select.evaluate([Candidate(source, problem, target) for source in candidates])
        lows = [v.timing.low if v and v.timing else -math.inf for v in verdicts]
        source = list(candidates)[lows.index(max(lows))]
    (verdict,) = judge.evaluate([Candidate(source, problem, target)])
    if verdict is None:
        return None
    return row(
        status=verdict.status.value,
        kernel=digest(source),
        origin=candidates[source],
        timings=verdict.timings,
    )


def describe(problem: Problem, row: Row | None) -> str:
    """One row as one plain line: the speedup over the fastest baseline under each protocol."""
    if row is None:
        return f"{problem.name:<24} no measurement (harness fault); evaluate again to retry"
    if row.timing is None:
        return f"{problem.name:<24} {row.status}"
    against = "  ".join(f"{t.protocol} {_interval(t)}" for t in row.fastest)
    return f"{problem.name:<24} {row.timing.candidate_us:>10.1f} µs  {against}"


def _interval(timing: Timing) -> str:
    return f"{timing.speedup:.3f} [{timing.low:.3f}, {timing.high:.3f}] {timing.baseline}"


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print the rows (a table on a terminal) and their summary, overall and by decade of FLOP."""
    console = console or Console()
    if console.is_terminal:
        protocols = list(dict.fromkeys(timing.protocol for row in rows for timing in row.timings))
        table = Table("problem", "µs", *(f"{name}: speedup over the fastest baseline" for name in protocols))
        for row in rows:
            if row.timing is None:
                table.add_row(row.problem.name, row.status)
                continue
            cells = {t.protocol: _interval(t) for t in row.fastest}
            microseconds = f"{row.timing.candidate_us:.1f}"
            table.add_row(row.problem.name, microseconds, *(cells.get(name, "") for name in protocols))
        console.print(table)
    summaries = {f"1e{decade}–1e{decade + 1} FLOP": summary for decade, summary in by_decade(rows).items()}
    overall = summarise(rows)
    if overall is None:
        console.print("no correct kernel on any of these shapes")
        return
    for name, summary in {**summaries, "all": overall}.items():
        console.print(
            f"{name:<14} {summary.shapes:>4} shapes  geometric mean {summary.geomean:.3f}  wins {summary.wins:4.0%}"
            f"  certain {summary.sure_wins:4.0%}  with fall-back {summary.dispatched:.3f}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
