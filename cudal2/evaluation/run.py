"""An evaluation: for each shape the best kernel, measured again and more precisely.

A kernel is the archive's best partly by luck. So the best few are timed against one another, and the measurement that
selects one is never the one reported: `run` selects with one pool and reports with another, more precise one.
Kernels from elsewhere (`sources.py`) are treated alike. Shapes are taken in a stratified order, so that the rows of an
unfinished evaluation are a representative part. A row is kept as soon as it is found, and a killed evaluation continues
where it stopped. Shapes are judged in batches, so that compilers work ahead and all GPUs are busy.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from cudal2.archive.selection import Comparable
from cudal2.archive.store import ANY, Archive
from cudal2.config import EvalConfig, WorkerConfig
from cudal2.evaluation import folders
from cudal2.evaluation.records import NOTHING_ARCHIVED, Effort, Results, Row
from cudal2.evaluation.results import add, load, only_evaluation_of, save
from cudal2.evaluation.sources import AT_ONCE, Candidates, Sampler, Source, archived, asking, sampler, written
from cudal2.evaluation.terminal import Shown
from cudal2.problem import Problem, stratified
from cudal2.records import CLOCKED, STRICT, Candidate, Environment, Status, Verdict
from cudal2.worker.pool.pool import Pool

__all__ = ["Sampler", "reporting_worker", "run", "sampler", "selection_worker"]

_OF_VERDICT = ("timings", "reason", "rho", "max_error", "repeatable", "machine")


def selection_worker(config: WorkerConfig) -> WorkerConfig:
    """The worker that selects: on the device's clock, with one pair more than `config`, so that the cache does not
    answer with the verdict that is archived."""
    pairs = {"min_pairs": config.min_pairs + 1, "max_pairs": config.max_pairs + 1}
    return msgspec.structs.replace(config, protocols=("device",), **pairs)


def reporting_worker(config: WorkerConfig) -> WorkerConfig:
    """The worker that reports: twice the batch, three times the pairs, half the interval of `config`.

    Its intervals are the ones that decide, so they are of STRICT confidence whatever `config` asks for. Raises
    ValueError where `config` times nothing.
    """
    if not config.protocols:
        raise ValueError("worker.protocols=[] times nothing, so nothing can be reported; use worker.protocols=[device]")
    return msgspec.structs.replace(
        config,
        batch_ms=2 * config.batch_ms,
        min_pairs=3 * config.min_pairs,
        max_pairs=3 * config.max_pairs,
        precision=config.precision / 2,
        confidence=max(config.confidence, STRICT),
    )


def run(
    config: EvalConfig,
    archive: Archive,
    select: Pool,
    report: Pool,
    *,
    sampler: Sampler | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Evaluate the problems of `config` and return their rows, in order; shows its progress on `console`.

    The kernels that `config.source` has for a problem compete, timed by `select` (a pool of `selection_worker`), and
    `report` (a pool of `reporting_worker`) measures the winner. From the archive compete the problem's best `finalists`
    and the best kernels of its `neighbours` nearest problems; where there are none, `sampler`, if given, writes new
    ones. Kernels that the archive does not have are added, if they are `archivable`. A problem is skipped if it has a
    row already, for this environment, these kernels and these protocols, that was measured as hard as is asked for. If
    the harness fails on a problem, it gets no row, and the next evaluation tries it again; and so it does with an
    archived kernel that a clock decided on.

    Archived kernels that were judged in another environment are tried only with `anywhere`. Raises ValueError where
    there are no others, where a folder has no kernels, where exported code and sources would share one folder of
    results, or where another process evaluates into it; HarnessFault where the results, or files of a folder, cannot be
    read or written.
    """
    with only_evaluation_of(Path(config.run)):
        return _run(config, archive, select, report, sampler, console or Console())


def _run(
    config: EvalConfig, archive: Archive, select: Pool, report: Pool, sampler: Sampler | None, console: Console
) -> list[Row]:
    folder = Path(config.run)
    results, environment = load(folder), report.environment()
    rows = {(row.problem, row.fingerprint): row for row in results.rows}
    environments = results.environments | {environment.fingerprint: environment}
    by_problem: dict[Problem, Row] = {}

    with _opened(config, archive, select, environment, sampler) as source:
        _apart(folder, results.rows, source.built)
        wanted = list(dict.fromkeys(map(source.asked, config.shapes.problems())))
        chosen = stratified(wanted)[: config.limit or None]
        places = {problem: place for place, problem in enumerate(wanted)}
        shown = Shown(console, len(chosen))

        def save_all() -> None:
            ordered = sorted(rows.values(), key=lambda row: places.get(row.problem, -1))
            save(folder, Results(environments, tuple(ordered)))

        def keep(problem: Problem, row: Row | None) -> None:
            if row is not None:
                by_problem[problem] = rows[problem, environment.fingerprint] = row
                add(folder, row)
            shown.add(problem, row)

        def judged(candidate: Candidate, verdict: Verdict) -> None:
            shown.took(verdict.seconds)
            if source.foreign and candidate.archivable:
                archive.add(verdict, candidate, None)

        def begun(problem: Problem, rivals: Candidates) -> Row:
            """The row of a problem before its kernel is judged, or for want of one."""
            unread = source.unread(problem)
            return Row(
                problem=problem,
                fingerprint=environment.fingerprint,
                status=Status.NO_SOURCE.value if unread else NOTHING_ARCHIVED,
                reason=unread,
                considered=_hashes(rivals),
                notes=(unread,) if unread else (),
            )

        save_all()
        with shown.bar:
            size = _at_once(source, config.worker) * report.width
            for start in range(0, len(chosen), size):
                batch = chosen[start : start + size]
                candidates, new = source.find(batch), dict[Problem, Candidates]()
                for problem in batch:
                    row = rows.get((problem, environment.fingerprint))
                    if problem not in candidates:
                        keep(problem, None)
                    elif row is not None and row.kernel and not candidates[problem]:  # what was measured stays
                        by_problem[problem] = row
                        shown.add(problem, row, new=False)
                    elif (
                        row is None
                        or (row.status in CLOCKED and not source.foreign)  # the archive knows it as right
                        or not _answers(row, candidates[problem], config.worker)
                        or not (row.kernel or row.reason == source.unread(problem))
                    ):
                        new[problem] = candidates[problem]
                    else:
                        by_problem[problem] = row
                        shown.add(problem, row, new=False)
                verdicts = sum(len(rivals) + (len(rivals) > 1) for rivals in new.values())
                shown.pace.found(len(batch), len(new), verdicts)
                try:
                    effort = Effort.of(reporting_worker(config.worker))
                    rows_to_be = {problem: begun(problem, rivals) for problem, rivals in new.items()}
                    _measure(new, rows_to_be, effort, select, report, keep, judged, shown.pace.judged)
                finally:  # who stops an evaluation finds its rows in the tables, too
                    save_all()
        shown.end()
    return [by_problem[problem] for problem in wanted if problem in by_problem]


def _at_once(source: Source, worker: WorkerConfig) -> int:
    """Shapes per GPU in a batch. Where calls are timed on the host's clock, a batch is built before any is timed."""
    waits = not source.built and not {"offline", "server"}.isdisjoint(worker.protocols)
    return min(source.at_once, AT_ONCE) if waits else source.at_once


def _apart(folder: Path, rows: Sequence[Row], built: bool) -> None:
    """Raises ValueError where rows of sources would be replaced by rows of exported code, or the other way round.

    A source's row can be exported, and shown with its source; a row of exported code cannot.
    """
    if any(row.kernel and bool(row.binary) != built for row in rows):
        there = "sources" if built else "exported code"
        raise ValueError(f"{folder / 'eval'} holds results of {there}, and the two are kept apart: name another run")


@contextmanager
def _opened(
    config: EvalConfig, archive: Archive, select: Pool, environment: Environment, sampler: Sampler | None
) -> Iterator[Source]:
    """The source of kernels that `config` names. ValueError where it has none that may be tried here."""
    if config.source == "policy":
        if sampler is None:
            raise ValueError("source=policy needs a policy that can be sampled: give samples=16, say")
        kernels = Comparable(archive, config.target, environment.fingerprint)
        yield written(kernels, config, asking(config, sampler, select, kernels, environment))
    elif not config.source:
        kernels = _comparable(archive, config, environment)
        yield archived(kernels, config, asking(config, sampler, select, kernels, environment) if sampler else None)
    elif source := folders.source(folder := Path(config.source).expanduser(), config.target, config.abi):
        yield source
    else:
        with Archive.of(folder, create=False) as other:
            source = archived(_comparable(other, config, environment), config)
            yield msgspec.structs.replace(source, foreign=True)


def _comparable(archive: Archive, config: EvalConfig, environment: Environment) -> Comparable:
    known = archive.environments()
    if not config.anywhere and known and environment.fingerprint not in known:
        raise ValueError(_elsewhere(list(known.values())[-1], environment))
    return Comparable(archive, config.target, ANY if config.anywhere else environment.fingerprint)


def _elsewhere(there: Environment, here: Environment) -> str:
    return (
        f"every kernel in the archive was judged in another environment ({there.differences(here)}); set the worker up "
        "as it was, or measure those kernels here with anywhere=true"
    )


def _answers(row: Row, candidates: Candidates, config: WorkerConfig) -> bool:
    """Whether a row makes a measurement unnecessary: it is of the same kernels, under every protocol asked for, and was
    measured as hard as is asked for now."""
    if row.considered != _hashes(candidates):
        return False
    protocols, asked = {timing.protocol for timing in row.timings}, Effort.of(reporting_worker(config))
    hard = not row.kernel or (row.effort is not None and row.effort.suffices(asked, row))
    return hard and (not protocols or protocols >= set(config.protocols))


def _hashes(candidates: Candidates) -> tuple[str, ...]:
    return tuple(sorted({candidate.kernel_hash for candidate in candidates}))


def _measure(
    new: dict[Problem, Candidates],
    begun: dict[Problem, Row],
    effort: Effort,
    select: Pool,
    report: Pool,
    keep: Callable[[Problem, Row | None], None],
    told: Callable[[Candidate, Verdict], None],
    step: Callable[[], None],
) -> None:
    """Times each problem's candidates against one another, then the winner again, and completes its row of `begun`.
    `told` is called with each winner's verdict, then `keep` with the row, and `step` after each verdict."""

    def judged(candidate: Candidate, verdict: Verdict | None) -> None:
        step()
        problem = candidate.problem
        if verdict is None:
            return keep(problem, None)
        told(candidate, verdict)
        fields = {name: getattr(verdict, name) for name in _OF_VERDICT}
        fields |= {"status": verdict.status.value, "kernel": candidate.kernel_hash, "effort": effort}
        digests = candidate.binary.digests if candidate.binary else ()
        notes = folders.notes(candidate) + begun[problem].notes
        foreign = {"abi": candidate.abi, "binary": digests, "notes": notes, "origin": new[problem][candidate]}
        keep(problem, msgspec.structs.replace(begun[problem], **fields, **foreign))

    for problem in new:
        if not new[problem]:
            keep(problem, begun[problem])
    asked = [candidate for rivals in new.values() if len(rivals) > 1 for candidate in rivals]
    lows = {
        one: verdict.timing.low if verdict and verdict.timing else -math.inf
        for one, verdict in zip(asked, select.evaluate(asked, lambda *_: step()))
    }
    report.evaluate([max(rivals, key=lambda one: lows.get(one, 0.0)) for rivals in new.values() if rivals], judged)
