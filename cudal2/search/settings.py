"""Settings of the kernel families: which of them serve a problem, and how they become candidates."""

import random
from collections.abc import Callable, Sequence

import msgspec

from cudal2 import corpus
from cudal2.config import SearchConfig
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem
from cudal2.records import Candidate, to_json
from cudal2.search.proposer import Setting, Trial
from cudal2.target import find

PATIENCE = 500
"""After so many suggestions in a row that were refused or tried before, a proposer stops: hardly any are left."""

Space = dict[str, tuple[int | str, ...]]
"""The values worth trying for each knob."""


def parsed(trial: Trial) -> Setting:
    """The setting that was tried."""
    return msgspec.json.decode(trial.prompt, type=Setting)


def searched(config: SearchConfig) -> dict[Problem, tuple[Family, ...]]:
    """The families that serve each problem of a search.

    Raises ValueError for an unknown name in `search.families`, and for a problem that none of them serves.
    """
    known = corpus.families(find(config.target))
    names = config.search.families or [family.name for family in known]
    if unknown := set(names) - {family.name for family in known}:
        some = ", ".join(family.name for family in known)
        raise ValueError(f"{config.target} has no families {', '.join(sorted(unknown))}; choose from {some}")
    serving = {}
    for problem in config.shapes.problems():
        serving[problem] = tuple(f for f in known if f.name in names and corpus.applies(f, problem))
        if not serving[problem]:
            raise ValueError(f"no family among {', '.join(names)} has a kernel for {problem.name}")
    return serving


def collect(
    suggest: Callable[[], Setting | None],
    problem: Problem,
    target: str,
    families: Sequence[Family],
    trials: Sequence[Trial],
    count: int,
) -> dict[Candidate, str]:
    """Up to `count` candidates from the settings that `suggest` returns, each with its setting as JSON.

    Settings that these families do not render, or whose source was tried before, are passed over. Fewer candidates
    mean that hardly any are left.
    """

    def written() -> tuple[str, str] | None:
        setting = suggest()
        source = rendered(setting, problem, families) if setting else None
        return (source, to_json(setting)) if setting and source else None

    return gather(written, problem, target, trials, count)


def gather(
    suggest: Callable[[], tuple[str, str] | None],
    problem: Problem,
    target: str,
    trials: Sequence[Trial],
    count: int,
) -> dict[Candidate, str]:
    """Up to `count` candidates from what `suggest` returns: a source and a record of how it was made.

    Each is new: none was tried before or comes twice. Fewer candidates mean that hardly any are left.
    """
    tried = {trial.source_hash for trial in trials}
    candidates: dict[Candidate, str] = {}
    misses = 0
    while len(candidates) < count and misses < PATIENCE:
        misses += 1
        source, made = suggest() or ("", "")
        candidate = Candidate(source, problem, target)
        if source and candidate not in candidates and candidate.kernel_hash not in tried:
            candidates[candidate] = made
            misses = 0
    return candidates


def rendered(setting: Setting, problem: Problem, families: Sequence[Family]) -> str | None:
    """The source for that setting; None where these families do not render it (any more) for the problem."""
    family = next((family for family in families if family.name == setting.family), None)
    if family is None or not allowed(problem, family, setting.knobs):
        return None
    return corpus.render(family, setting.knobs, problem)


def draw(problem: Problem, family: Family, rng: random.Random, space: Space | None = None) -> Setting | None:
    """A setting drawn uniformly from those in `space` that rules allow; None where PATIENCE draws found none."""
    space = space or space_of(problem, family)
    for _ in range(PATIENCE):
        knobs = {knob: rng.choice(values) for knob, values in space.items()}
        if not corpus.refusal(family, knobs, problem):
            return Setting(family.name, knobs)
    return None


def space_of(problem: Problem, family: Family) -> Space:
    """The values worth trying: only one style, as styles do not change the speed; f16 sums for f16 problems only."""
    space = dict(family.knobs)
    space["style"] = space["style"][:1]
    if problem.accumulate == "f32" and "accumulate" in space:
        space["accumulate"] = tuple(value for value in space["accumulate"] if value != "f16")
    return space


def allowed(problem: Problem, family: Family, knobs: Knobs) -> bool:
    """Whether the family as it is now renders that setting for the problem."""
    space = space_of(problem, family)
    fits = knobs.keys() == space.keys() and all(value in space[knob] for knob, value in knobs.items())
    return fits and not corpus.refusal(family, knobs, problem)
