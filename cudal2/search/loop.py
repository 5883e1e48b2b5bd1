"""Knob search: the fastest setting of the kernel families for each problem, found by trying, without a model.

A user's tool, and the baseline that a trained policy has to beat at the same number of kernels.

The archive is all the state there is. Every verdict is a sample whose `prompt` is the setting as JSON and whose
`step` is its generation, and a generation is a function of the configuration and the generations before it. A
search that was killed therefore proposes its last generation once more, judges what is missing of it, and goes on
as if nothing had happened.
"""

import random
import sys
import time
from collections.abc import Sequence

import msgspec
from rich.console import Console

from cudal2 import corpus, selection
from cudal2.archive import Archive
from cudal2.config import SearchConfig
from cudal2.corpus import Family
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, Timing, Verdict, digest, to_json
from cudal2.search import prior
from cudal2.search.proposals import Setting, Trial, propose
from cudal2.target import find
from cudal2.worker.pool import Pool


class Found(msgspec.Struct, frozen=True):
    """What is known after `kernels` verdicts; `best` and `timing` are None where no kernel was correct."""

    problem: Problem
    best: Setting | None
    timing: Timing | None
    kernels: int
    seconds: float


def run(config: SearchConfig, judge: Pool, archive: Archive, console: Console | None = None) -> list[Found]:
    """Search for every problem of `config.shapes` in turn, or continue where an earlier search stopped.

    A setting that `judge` reached no verdict on (a fault of the harness) is not recorded and may come again.
    Raises ValueError for a family that is unknown or a search without end, HarnessFault where not one kernel
    of a generation could be judged.
    """
    if config.search.generation < 1 or not (config.search.kernels or config.search.seconds):
        raise ValueError("search.generation must be positive, and search.kernels or search.seconds too")
    console = console or Console()
    problems = list(dict.fromkeys(config.shapes.problems()))
    spaces = [_families(config, problem) for problem in problems]
    width = max((len(problem.name) for problem in problems), default=0)
    found = []
    for problem, families in zip(problems, spaces):
        found.append(_search(config, problem, families, judge, archive, console))
        console.print(describe(found[-1], width), highlight=False, markup=False, soft_wrap=True)
    return found


def describe(found: Found, width: int = 0) -> str:
    """One result as one plain line; `width` is that of the column of names."""
    spent = f"{found.kernels:>5} kernels {found.seconds:>7.1f} s"
    best, timing = found.best, found.timing
    if best is None or timing is None:
        return f"{found.problem.name:<{width}}  {'no correct kernel':<24}  {spent}"
    speedup = f"{timing.speedup:6.3f} × [{timing.low:.3f}, {timing.high:.3f}]"
    knobs = " ".join(f"{knob}={value}" for knob, value in best.knobs.items() if knob != "style")
    return f"{found.problem.name:<{width}}  {speedup:<24}  {spent}  {best.family}  {knobs}"


def _search(
    config: SearchConfig, problem: Problem, families: Sequence[Family], judge: Pool, archive: Archive, console: Console
) -> Found:
    budget, fingerprint = config.search, judge.environment().fingerprint
    trials = _trials(config, problem, fingerprint, archive)
    generation = max((trial.generation for trial in trials), default=0)
    with console.status(problem.name) as status:
        while len(trials) < (budget.kernels or sys.maxsize) and not 0 < budget.seconds <= _seconds(trials):
            if not _generation(config, problem, families, generation, trials, judge, archive):
                break
            generation += 1
            trials = _trials(config, problem, fingerprint, archive)
            best = max((trial.low for trial in trials), default=0.0)
            status.update(f"{problem.name}  {best:.3f} ×  {len(trials)} kernels  {_seconds(trials):.0f} s")
    top = max(trials, key=lambda trial: trial.low, default=None)
    if top is None or not top.low:
        return Found(problem, None, None, len(trials), _seconds(trials))
    ranked = archive.ranked(problem, config.target, fingerprint)
    timing = next(entry.verdict.timing for entry in ranked if entry.hash == top.source)
    return Found(problem, top.setting, timing, len(trials), _seconds(trials))


def _generation(
    config: SearchConfig,
    problem: Problem,
    families: Sequence[Family],
    generation: int,
    trials: Sequence[Trial],
    judge: Pool,
    archive: Archive,
) -> bool:
    """Propose a generation, judge what `trials` do not have of it, archive the verdicts; False: nothing is left."""
    started = time.perf_counter()
    environment = judge.environment()
    before = [trial for trial in trials if trial.generation < generation]
    count = min(config.search.generation, (config.search.kernels or sys.maxsize) - len(before))
    # Seeded anew for each generation, so that a continued search draws what it would have drawn.
    rng = random.Random(f"{config.seed} {problem.name} {generation}")
    first: list[Setting] = []
    if config.search.method == "evolve" and not before:
        first = _lent(config, problem, environment.fingerprint, archive)
        if config.search.prior == "nvidia":
            advice = prior.advise(problem, environment.device, max(1, count // 2))
            first += prior.follow(advice, problem, families, rng)
    proposed = propose(config.search.method, problem, families, before, first, count, rng)
    known = {trial.source for trial in trials}
    new = {source: setting for source, setting in proposed.items() if digest(source) not in known}
    if new:
        reached = _judge([Candidate(source, problem, config.target) for source in new], judge)
        seconds = (time.perf_counter() - started) / len(reached)
        for index, (candidate, verdict) in enumerate(reached, len(trials) - len(before)):
            setting = msgspec.structs.replace(new[candidate.source], seconds=seconds)
            where = {"run": _name(config, problem, environment.fingerprint), "step": generation, "index": index}
            archive.add(verdict, candidate, where | {"policy": "search", "prompt": to_json(setting)})
    return bool(proposed)


def _judge(candidates: Sequence[Candidate], judge: Pool) -> list[tuple[Candidate, Verdict]]:
    """The candidates that a verdict was reached on, in order; HarnessFault where there is none."""
    reached = [(one, verdict) for one, verdict in zip(candidates, judge.evaluate(candidates)) if verdict is not None]
    if not reached:
        remedy = "Run `cudal2 doctor`, then start again to continue"
        raise judge.fault or HarnessFault(f"no kernel for {candidates[0].problem.name} could be judged", remedy)
    return reached


def _families(config: SearchConfig, problem: Problem) -> list[Family]:
    known = corpus.families(find(config.target))
    names = config.search.families or [family.name for family in known]
    if unknown := set(names) - {family.name for family in known}:
        some = ", ".join(family.name for family in known)
        raise ValueError(f"{config.target} has no families {', '.join(sorted(unknown))}; choose from {some}")
    found = [family for family in known if family.name in names and problem.layout in family.layouts]
    if not found:
        raise ValueError(f"no family among {', '.join(names)} has a {problem.layout} kernel")
    return found


def _name(config: SearchConfig, problem: Problem, fingerprint: str) -> str:
    """The archive's name for this search: what was found elsewhere, or otherwise, is another search."""
    return f"search {config.target} {problem.name} {config.search.method} {config.seed} {fingerprint}"


def _trials(config: SearchConfig, problem: Problem, fingerprint: str, archive: Archive) -> list[Trial]:
    """What this search tried for `problem`, in order."""
    lows = {entry.hash: entry.low for entry in archive.ranked(problem, config.target, fingerprint)}
    return [
        Trial(
            msgspec.json.decode(sample.origin.prompt, type=Setting),
            sample.origin.step,
            sample.source,
            lows.get(sample.source, 0.0),
        )
        for sample in archive.samples(_name(config, problem, fingerprint))
    ]


def _lent(config: SearchConfig, problem: Problem, fingerprint: str, archive: Archive) -> list[Setting]:
    """The best settings of the nearest problems, as far as this search found them."""
    near = selection.nearest(archive, problem, config.target, fingerprint, config.search.neighbours)
    searched = (_trials(config, entry.verdict.problem, fingerprint, archive) for entry in near)
    bests = [max(trials, key=lambda trial: trial.low) for trials in searched if trials]
    return [trial.setting for trial in bests if trial.low]


def _seconds(trials: Sequence[Trial]) -> float:
    return sum(trial.setting.seconds for trial in trials)
