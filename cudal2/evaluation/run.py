"""The archive's best kernels, measured once more and more strictly, shape by shape.

A kernel is the archive's best partly by luck. So its best few are timed against one another, and the measurement that
selected one is never the one reported: `run` selects with one pool and reports what another, stricter one finds.
Results go to `RUN/eval/results.json` (everything) and `results.csv` (a row for each shape and baseline) after every
shape, each file replaced atomically; a killed evaluation continues where it stopped. Shapes are judged a batch at a
time, so that compilers work ahead and all GPUs have something to do.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from cudal2 import judging
from cudal2.archive import selection
from cudal2.archive.comparable import Comparable
from cudal2.archive.records import Origin
from cudal2.archive.store import ANY, Archive
from cudal2.config import EvalConfig, WorkerConfig
from cudal2.evaluation.results import NOTHING_ARCHIVED, Results, Row, load, save
from cudal2.evaluation.terminal import Shown
from cudal2.problem import Problem
from cudal2.records import STRICT, Candidate, Environment, Verdict
from cudal2.target import find
from cudal2.worker.pool import Pool

Sampler = Callable[[Problem, Comparable, Environment], Sequence[str]]
"""New sources for a problem from a policy ("" where a completion holds none), which may be shown what is archived."""

Candidates = dict[Candidate, Problem]
"""Kernels worth trying for a problem, its own best first, with the problem each was archived for."""

AT_ONCE = 64
"""Shapes in a batch."""


def selection_worker(config: WorkerConfig) -> WorkerConfig:
    """The worker that selects: on the device's clock, and once more than `config` lest it recall what was archived."""
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
    """Evaluate the problems of `config` and return their rows, in order; says how far it is on `console`.

    The archive's best `finalists` kernels of each problem compete with the best of its `neighbours` nearest other
    problems, timed by `select` (a pool of `selection_worker`); `report` (of `reporting_worker`) measures the winner.
    Where nothing is archived near it, `sampler`, if given, writes new kernels, which join the archive. A problem whose
    row is there already, for this environment and the same kernels, is skipped; one whose measurement the harness
    could not complete gets no row and is tried again by the next evaluation.

    Kernels judged in another environment than this are tried only where `anywhere` says so. Raises ValueError
    where the archive holds no others, HarnessFault where the results cannot be read or written.
    """
    console, folder = console or Console(), Path(config.run)
    environment = report.environment()
    known = archive.environments()
    if not config.anywhere and known and environment.fingerprint not in known:
        raise ValueError(_elsewhere(list(known.values())[-1], environment))
    kernels = Comparable(archive, config.target, ANY if config.anywhere else environment.fingerprint)
    results = load(folder)
    rows = {(row.problem, row.fingerprint): row for row in results.rows}
    environments = results.environments | {environment.fingerprint: environment}
    chosen = list(dict.fromkeys(config.shapes.problems()))[: config.limit or None]
    shown = Shown(console, len(chosen))
    found: dict[Problem, Row] = {}
    places = {problem: place for place, problem in enumerate(chosen)}

    def save_all() -> None:
        ordered = sorted(rows.values(), key=lambda row: places.get(row.problem, -1))
        save(folder, Results(environments, tuple(ordered)))

    def keep(problem: Problem, row: Row | None) -> None:
        if row is not None:
            found[problem] = rows[problem, environment.fingerprint] = row
            save_all()
        shown.add(problem, row)

    with shown.bar:
        for start in range(0, len(chosen), AT_ONCE):
            new: dict[Problem, Candidates] = {}
            for problem in chosen[start : start + AT_ONCE]:
                candidates = _candidates(problem, kernels, config)
                if sampler and not candidates:
                    try:
                        _sample(problem, sampler, select, kernels, environment)
                    except judging.NothingJudged:
                        keep(problem, None)
                        continue
                    candidates = _candidates(problem, kernels, config)
                row = rows.get((problem, environment.fingerprint))
                if row is None or row.considered != _hashes(candidates):
                    new[problem] = candidates
                else:
                    found[problem] = row
                    shown.add(problem, row)
            _measure(new, environment, select, report, keep)
    save_all()
    return [found[problem] for problem in chosen if problem in found]


def _elsewhere(there: Environment, here: Environment) -> str:
    pairs = ((name, getattr(there, name), getattr(here, name)) for name in there.__struct_fields__)
    differs = "; ".join(f"{name}: {archived}, here {now}" for name, archived, now in pairs if archived != now)
    return (
        f"every kernel in the archive was judged in another environment ({differs}); set the worker up as it "
        "was, or measure those kernels here with anywhere=true"
    )


def sampler(config: EvalConfig) -> Sampler:
    """`config.samples` kernels a problem from `config.policy`, prompted as in training; loaded when first asked."""
    from cudal2.policy import model, prompts, writer

    target = find(config.target)
    loaded = cache(partial(model.load, config.policy, config.target))

    def sample(problem: Problem, kernels: Comparable, environment: Environment) -> list[str]:
        what = config.prompt, config.policy.chat, problem, kernels
        prompt = prompts.from_archive(*what, environment, config.seed, 0)
        return writer.write(*loaded(), [prompt] * config.samples, config.policy, target, config.seed)

    return sample


def _candidates(problem: Problem, kernels: Comparable, config: EvalConfig) -> Candidates:
    best = kernels.ranked(problem, config.finalists)
    near = selection.nearest(kernels, problem, config.neighbours) if config.neighbours else []
    found: Candidates = {}
    for entry in best + near:
        candidate = Candidate(entry.source, problem, kernels.target, edit=entry.edit)
        found.setdefault(candidate, entry.verdict.problem)
    return found


def _hashes(candidates: Candidates) -> tuple[str, ...]:
    return tuple(sorted(candidate.kernel_hash for candidate in candidates))


def _sample(problem: Problem, sampler: Sampler, select: Pool, kernels: Comparable, environment: Environment) -> None:
    if any(kernels.archive.samples("eval", problem.name)):
        return  # a killed evaluation asked already
    here = msgspec.structs.replace(kernels, fingerprint=environment.fingerprint)
    asked = [
        (Candidate(source, problem, kernels.target), Origin(kind="eval", run=problem.name, step=0, index=index))
        for index, source in enumerate(sampler(problem, here, environment))
    ]
    judging.judge(select, kernels.archive, asked)


def _measure(
    new: dict[Problem, Candidates],
    environment: Environment,
    select: Pool,
    report: Pool,
    keep: Callable[[Problem, Row | None], None],
) -> None:
    """Each problem's candidates against one another, then the winner once more; `keep` gets rows as they come."""

    def row(problem: Problem, **fields: Any) -> Row:
        considered = _hashes(new[problem])
        return Row(problem=problem, fingerprint=environment.fingerprint, considered=considered, **fields)

    def judged(candidate: Candidate, verdict: Verdict | None) -> None:
        problem = candidate.problem
        if verdict is None:
            return keep(problem, None)
        origin = new[problem][candidate]
        fields = {"status": verdict.status.value, "timings": verdict.timings}
        keep(problem, row(problem, kernel=candidate.kernel_hash, origin=origin, **fields))

    for problem in new:
        if not new[problem]:
            keep(problem, row(problem, status=NOTHING_ARCHIVED))
    asked = [candidate for rivals in new.values() if len(rivals) > 1 for candidate in rivals]
    lows = {
        one: verdict.timing.low if verdict and verdict.timing else -math.inf
        for one, verdict in zip(asked, select.evaluate(asked))
    }
    report.evaluate([max(rivals, key=lambda one: lows.get(one, 0.0)) for rivals in new.values() if rivals], judged)
