"""Settings of the kernel families: which of them serve a problem, how they become candidates, and what the genetic
searches share: how parents and operators are selected, and what one problem lends another.

Parents are selected by tournament, as in autotuners (Vasilache et al., Tensor Comprehensions, arXiv:1802.04730),
operators by probability matching (D. Thierens, An adaptive pursuit strategy for allocating operator probabilities,
GECCO 2005).
"""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from cudal2 import corpus
from cudal2.config import SearchConfig
from cudal2.corpus import Family, Knobs
from cudal2.problem import Problem
from cudal2.records import Candidate, to_json
from cudal2.search.proposer import Setting, Task, Trial, Trials
from cudal2.target import find

PATIENCE = 500
"""After so many suggestions in a row that were refused or tried before, a proposer stops: hardly any are left."""

SHAPE, TILED = ("tile_m", "tile_n", "cluster", "splits"), "tile_m"
"""What settings must share to be much alike; a knob of the families to which that applies."""

T = TypeVar("T")

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


def plain(family: Family, knobs: Knobs) -> Knobs:
    """The knobs in the one style that searches try."""
    return knobs | {"style": family.knobs["style"][0]}


def allowed(problem: Problem, family: Family, knobs: Knobs) -> bool:
    """Whether the family as it is now renders that setting for the problem."""
    space = space_of(problem, family)
    fits = knobs.keys() == space.keys() and all(value in space[knob] for knob, value in knobs.items())
    return fits and not corpus.refusal(family, knobs, problem)


EXPLORE = 0.1
"""Share of a generation that is drawn at random; in probability matching, the probability that all names share."""

ELITE = 0.25
"""In probability matching, the best kernels count as successes: this share of the correct ones."""

PARENTS = 8
"""Parents come from so many of the best kernels; each is the best of `TOURNAMENT` drawn from them."""

TOURNAMENT = 3


def tournament(count: int, rng: random.Random) -> int:
    """The index of the winner among `count` contestants that are sorted, the best first."""
    return min(rng.randrange(count) for _ in range(TOURNAMENT))


def elite(correct: int) -> int:
    """How many of so many correct kernels count as successes."""
    return max(1, round(ELITE * correct))


def matched(names: Sequence[str], tried: Sequence[str], succeeded: Sequence[str], rng: random.Random) -> str:
    """One of `names`, drawn in proportion to its rate of success, plus a minimum.

    `tried` and `succeeded` hold one name per trial. A name that was not tried yet counts as always successful.
    """
    trials, successes = Counter(tried), Counter(succeeded)
    quality = [successes[name] / trials[name] if trials[name] else 1.0 for name in names]
    total = sum(quality) or 1.0
    weights = [EXPLORE / len(names) + (1 - EXPLORE) * value / total for value in quality]
    return rng.choices(names, weights)[0]


def lent(task: Task, trials: Trials) -> list[Trial]:
    """The best kernel of each lender that this problem has not tried yet, as the lender's trial."""
    tried = {trial.source_hash for trial in trials[task.problem]}
    best: dict[str, Trial] = {}
    for lender in task.lenders:
        if correct := [trial for trial in trials[lender] if trial.low]:
            top = max(correct, key=lambda trial: trial.low)
            best.setdefault(top.source_hash, top)
    return [trial for source_hash, trial in best.items() if source_hash not in tried]


def shape_of(setting: Setting) -> Hashable:
    """What much alike settings share: family, tile, cluster and split; without tiles none is like another."""
    shape = setting.family, *(setting.knobs.get(name) for name in SHAPE)
    return shape if TILED in setting.knobs else to_json(setting)


def first_of_each(some: Iterable[T], shape: Callable[[T], Hashable]) -> Iterator[T]:
    """The first of each shape, then all others, in their order."""
    seen, others = set[Hashable](), list[T]()
    for one in some:
        if (here := shape(one)) in seen:
            others.append(one)
        else:
            seen.add(here)
            yield one
    yield from others
