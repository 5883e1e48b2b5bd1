"""Knob search: the fastest setting of the kernel families for each problem, found by trying, without a model.

A user's tool, and the baseline that a trained policy has to beat at the same number of kernels.

The archive is all the state there is. Every verdict is a sample whose `prompt` is the setting as JSON and whose
`step` is its generation, and a generation is a function of the configuration and the generations before it. A
search that was killed therefore proposes its last generation once more, judges what is missing of it, and goes on
as if nothing had happened.

`evolve` is a genetic algorithm as autotuners use it (Vasilache et al., Tensor Comprehensions, arXiv:1802.04730):
tournaments among the best, uniform crossover within a family, mutation of one or two knobs. Families are chosen by
probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator probabilities, GECCO 2005).

`prior` nvidia starts from what nvMatmulHeuristics proposes for the GPU and the shape
(https://docs.nvidia.com/cuda/nvidia-matmul-heuristics), a closed library under NVIDIA's own licence that users who
accept it install themselves. It needs no GPU and answers within milliseconds.
"""

import math
import random
import re
import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
from rich.console import Console

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.config import SearchConfig
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem
from cudal2.records import Candidate, HarnessFault, Timing, Verdict, digest, to_json
from cudal2.target import find
from cudal2.worker.pool import Pool

EXPLORE = 0.1
"""Share of an evolved generation that is drawn at random all the same; also shared out among the families."""

ELITE = 0.25
"""This share of the correct kernels counts as success when a family is chosen."""

PARENTS = 8
"""Only so many of a family's best settings have children; each is the best of `TOURNAMENT` drawn from them."""

TOURNAMENT = 3

PATIENCE = 500
"""So many proposals in a row that were refused or known already mean that hardly any are left."""

Space = dict[str, tuple[int | str, ...]]
"""The values worth trying for each knob."""

Advice = dict[str, Any]
"""What a library proposes for a problem: values by the field names of nvMatmulHeuristics, and `cluster` as MxN."""

ADVISED = {
    **{"bm": "cta_tile_m", "bn": "cta_tile_n", "bk": "cta_tile_k"},
    **{"tile_m": "cta_tile_m", "tile_n": "cta_tile_n", "step": "cta_tile_k"},
    **{"stages": "stages", "cluster": "cluster", "splits": "split_k"},
}
"""Knobs by the names that the CUDA families give them, and the field that advises on each."""


class Setting(msgspec.Struct, frozen=True):
    """A value for each knob of a family, and the seconds of wall time that went into judging it."""

    family: str
    knobs: Knobs
    seconds: float = 0.0


class Trial(msgspec.Struct, frozen=True):
    """A setting that was judged: `source` is the hash of what it renders to, `low` the lower bound of that
    kernel's speedup over the fastest baseline, 0 unless it is correct."""

    setting: Setting
    generation: int
    source: str
    low: float


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
            first += _following(_nvidia(problem, environment.device, max(1, count // 2)), problem, families, rng)
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
    near = archive.nearest(problem, config.target, fingerprint, config.search.neighbours)
    searched = (_trials(config, entry.verdict.problem, fingerprint, archive) for entry in near)
    bests = [max(trials, key=lambda trial: trial.low) for trials in searched if trials]
    return [trial.setting for trial in bests if trial.low]


def _seconds(trials: Sequence[Trial]) -> float:
    return sum(trial.setting.seconds for trial in trials)


def propose(
    method: str,
    problem: Problem,
    families: Sequence[Family],
    trials: Sequence[Trial],
    first: Sequence[Setting],
    count: int,
    rng: random.Random,
) -> dict[str, Setting]:
    """Up to `count` settings by their sources, none rendering to what was tried; fewer when nothing is left.

    The settings `first` come first, as far as they render here; then `method` "random" draws a family uniformly
    and its allowed settings uniformly, "evolve" makes children of the best `trials`.
    """
    tried = {trial.source for trial in trials}
    found: dict[str, Setting] = {}
    by_name = {family.name: family for family in families}
    wanted = iter([setting for setting in first if setting.family in by_name])
    misses = 0
    while len(found) < count and misses < PATIENCE:
        misses += 1
        setting = next(wanted, None)
        if setting is None and method == "evolve":
            setting = _child(problem, families, trials, rng)
        setting = setting or _random(problem, rng.choice(families), rng)
        if setting and _allowed(problem, by_name[setting.family], setting.knobs):
            source = corpus.render(by_name[setting.family], setting.knobs, problem.layout)
            if source not in found and digest(source) not in tried:
                found[source] = setting
                misses = 0
    return found


def _child(problem: Problem, families: Sequence[Family], trials: Sequence[Trial], rng: random.Random) -> Setting | None:
    """A mutated cross of two good settings; None where one is better drawn at random. May be refused."""
    ranked = sorted((trial for trial in trials if trial.low), key=lambda trial: -trial.low)
    if not ranked or rng.random() < EXPLORE:
        return None
    family = _choose(families, trials, ranked, rng)
    good = [trial for trial in ranked if trial.setting.family == family.name]
    parents = list(islice((t.setting.knobs for t in good if _allowed(problem, family, t.setting.knobs)), PARENTS))
    if not parents:
        return _random(problem, family, rng)
    one, other = (parents[min(rng.randrange(len(parents)) for _ in range(TOURNAMENT))] for _ in range(2))
    knobs = {knob: rng.choice((one[knob], other[knob])) for knob in family.knobs}
    space = _space(problem, family)
    free = [knob for knob, values in space.items() if len(values) > 1]
    for knob in rng.sample(free, min(len(free), rng.choice((1, 2)))):
        knobs[knob] = _mutated(knobs[knob], space[knob], rng)
    return Setting(family.name, knobs)


def _mutated(value: int | str, values: Sequence[int | str], rng: random.Random) -> int | str:
    """Another of `values`: of a number every other time the next larger or smaller one."""
    place = values.index(value)
    near = [values[i] for i in (place - 1, place + 1) if 0 <= i < len(values)]
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.choice(near)
    return rng.choice([other for other in values if other != value])


def _choose(families: Sequence[Family], trials: Sequence[Trial], ranked: Sequence[Trial], rng: random.Random) -> Family:
    """Probability matching: in proportion to the share of a family's trials among the elite, plus a minimum.

    A family not tried yet counts as a success.
    """
    elite = ranked[: max(1, round(ELITE * len(ranked)))]
    quality = []
    for family in families:
        tried = sum(trial.setting.family == family.name for trial in trials)
        quality.append(sum(trial.setting.family == family.name for trial in elite) / tried if tried else 1.0)
    total = sum(quality) or 1.0
    weights = [EXPLORE / len(families) + (1 - EXPLORE) * value / total for value in quality]
    return rng.choices(families, weights)[0]


def _random(problem: Problem, family: Family, rng: random.Random, space: Space | None = None) -> Setting | None:
    """An allowed setting within `space`, each as likely; None where hardly any can be allowed."""
    space = space or _space(problem, family)
    for _ in range(PATIENCE):
        knobs = {knob: rng.choice(values) for knob, values in space.items()}
        if not corpus.refusal(family, knobs, problem.layout):
            return Setting(family.name, knobs)
    return None


def _space(problem: Problem, family: Family) -> Space:
    """The values worth trying: one style, as styles differ in names and comments; no f16 sums unless asked for."""
    space = dict(family.knobs)
    space["style"] = space["style"][:1]
    if problem.accumulate == "f32" and "accumulate" in space:
        space["accumulate"] = tuple(value for value in space["accumulate"] if value != "f16")
    return space


def _allowed(problem: Problem, family: Family, knobs: Knobs) -> bool:
    """Whether the family as it is now renders that setting for the problem."""
    space = _space(problem, family)
    fits = knobs.keys() == space.keys() and all(value in space[knob] for knob, value in knobs.items())
    return fits and not corpus.refusal(family, knobs, problem.layout)


def _following(
    advice: Sequence[Advice], problem: Problem, families: Sequence[Family], rng: random.Random
) -> list[Setting]:
    """For each advice a setting as near to it as a family with such knobs allows, its other knobs at random."""
    able = [family for family in families if len(_advised(family)) >= 3]
    found = []
    for fields in advice if able else []:
        family = rng.choice(able)
        space = _space(problem, family)
        for knob, field in _advised(family).items():
            space[knob] = (min(space[knob], key=lambda value: _distance(value, fields[field])),)
        if setting := _random(problem, family, rng, space):
            found.append(setting)
    return found


def _advised(family: Family) -> dict[str, str]:
    return {knob: field for knob, field in ADVISED.items() if knob in family.knobs}


def _distance(value: int | str, wanted: int | str) -> float:
    if isinstance(value, int) and isinstance(wanted, int):
        return abs(math.log2(max(value, 1) / max(wanted, 1)))
    return 0.0 if value == wanted else math.inf


def _nvidia(problem: Problem, device: str, count: int) -> list[Advice]:
    """What nvMatmulHeuristics thinks fastest on `device`; ValueError where it is absent or knows no such GPU."""
    try:
        import nvMatmulHeuristics as nv
    except ImportError as error:
        raise ValueError("search.prior=nvidia needs nvMatmulHeuristics: pip install 'cudal2[heuristics]'") from error
    gpu = nv.NvMatmulHeuristicsNvidiaGpu[_nvidia_gpu(device, list(nv.NvMatmulHeuristicsNvidiaGpu.__members__))]
    backend = nv.NvMatmulHeuristicsTarget["CUTLASS3" if gpu >= 9000 else "CUTLASS"]
    model = nv.NvMatmulHeuristicsInterfaceEx(backend=backend, gpu=gpu)
    # Its layouts say of A, then B, whether it is transposed; B stored as N×K is.
    layout = nv.NvMatmulHeuristicsMatmulLayout["NT_ROW_MAJOR" if problem.layout == "tn" else "NN_ROW_MAJOR"]
    asked = model.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout)
    # Types of A and B, of the sum, of C: H is half, S single.
    # More than `count`, as many differ only in what no knob follows.
    answers = model.get(asked, 8 * count, "HSH" if problem.accumulate == "f32" else "HHH")
    kernels = [vars(answer["kernel"]) for answer in answers]
    advice = [kernel | {"cluster": f"{kernel['cluster_m']}x{kernel['cluster_n']}"} for kernel in kernels]
    distinct = {tuple(one[field] for field in ADVISED.values()): one for one in reversed(advice)}
    return list(reversed(distinct.values()))[:count]


def _nvidia_gpu(device: str, known: Sequence[str]) -> str:
    """Which of `known`, such as H200_SXM, the driver calls `device`, such as NVIDIA H200; ValueError for none."""
    words = set(re.split(r"[^A-Za-z0-9]+", device.upper()))
    # The first word with a digit is the model; the others tell its variants apart.
    of_model = [name for name in known if next((w for w in name.split("_") if re.search(r"\d", w)), "") in words]
    if not of_model:
        raise ValueError(f"nvMatmulHeuristics does not know {device}; leave search.prior at none")
    return max(of_model, key=lambda name: len(words.intersection(name.split("_"))))
