"""The setting of the kernel families whose rendered source is nearest to a given source.

It is found by coordinate descent over the knobs. The distance between two sources is the number of word triples and
pairs of adjacent lines that only one of them has. The descent may end in a local minimum: without a hint it finds the
setting of a rendered source in 99 of 100 cases. If the author's setting is known, it starts there.
"""

import difflib
import random
import re
from collections import Counter
from functools import cache
from itertools import combinations, pairwise

import msgspec

from cudal2 import corpus
from cudal2.corpus import Family, Knobs
from cudal2.corpus.family import form
from cudal2.problem import Layout, Problem
from cudal2.target import Target

STARTS = 6
"""Without a hint, so many random settings of each family are compared with the source,"""
FAMILIES = 3
"""and descents start from the best setting of each of so many nearest families."""

_WORD = re.compile(r"\w+|[^\w\s]")
_LIST = re.compile(r"(?:%\d+, ){8}|\"\+[fr]\"\(")
"""Lists of operands of a matrix instruction. They are left out of the distance, for they would dominate it."""

Marks = Counter[tuple[str, ...]]
Cost = tuple[float, bool]
NOWHERE: Cost = (float("inf"), True)


class Nearest(msgspec.Struct, frozen=True):
    """The nearest rendering of a source.

    `refused` says why a rule refuses that setting ("" where none does). `changed` counts the lines of a diff, removed
    and added. If there are none and no refusal, the source is a rendering.
    """

    family: str
    knobs: Knobs
    source: str
    refused: str
    changed: int

    @property
    def is_it(self) -> bool:
        """Whether the source is that rendering, letter for letter."""
        return not self.changed and not self.refused


def nearest(
    text: str, target: Target, asked: Problem | Layout, family: str = "", knobs: Knobs | None = None
) -> Nearest:
    """The rendering of the target's families that is nearest to `text`, whose plan, if any, is ignored.

    The descent begins with the setting that the plan states, else with `family` and `knobs` if they are a valid
    setting, else with random ones of every family. Raises ValueError where no family has a kernel for such a problem.
    """
    problem = form(asked)
    by_name = {one.name: one for one in corpus.families(target) if not corpus.lacks(one, problem)}
    body = corpus.without_plan(text)
    wanted, stated = _marks(body), corpus.stated(text, target)
    name, setting = stated or (family, knobs or {})
    if name in by_name and _complete(by_name[name], setting):
        starts = [(by_name[name], setting)]
    else:
        starts = _starts(wanted, list(by_name.values()), problem)
    if not starts:
        raise ValueError(f"no family in data/families has a kernel for {problem.name} and its like on {target.name}")
    ends = (_descend(wanted, one, values, problem) for one, values in starts)
    _, best, values = min(ends, key=lambda one: one[0])
    source = corpus.written(best, values, problem)
    return Nearest(best.name, values, source, corpus.refusal(best, values, problem), changed_lines(source, body))


def changed_lines(one: str, other: str) -> int:
    """Lines that only one of two sources has, as a unified diff shows them."""
    return sum(line[:1] in "+-" for line in difference(one, other)[2:])


def difference(one: str, other: str) -> list[str]:
    """A unified diff without its file names' line ends; empty where both are the same."""
    return list(difflib.unified_diff(one.splitlines(), other.splitlines(), "rendered", "written", lineterm=""))


def _complete(family: Family, knobs: Knobs) -> bool:
    return knobs.keys() == family.knobs.keys() and all(value in family.knobs[knob] for knob, value in knobs.items())


def _starts(wanted: Marks, families: list[Family], problem: Problem) -> list[tuple[Family, Knobs]]:
    """The nearest of STARTS random settings of each family; of these the FAMILIES nearest."""
    starts = []
    for family in families:
        rng = random.Random(family.name)
        some = [{knob: rng.choice(values) for knob, values in family.knobs.items()} for _ in range(STARTS)]
        starts.append(min(((_cost(wanted, family, knobs, problem), family, knobs) for knobs in some), key=_first))
    return [(family, knobs) for _, family, knobs in sorted(starts, key=_first)[:FAMILIES]]


def _first(found: tuple[Cost, Family, Knobs]) -> Cost:
    return found[0]


def _descend(wanted: Marks, family: Family, knobs: Knobs, problem: Problem) -> tuple[Cost, Family, Knobs]:
    """Sets one knob after another to its best value, as long as that lowers the cost."""
    best, before = _cost(wanted, family, knobs, problem), NOWHERE
    while (0, False) < best < before:
        before = best
        for knob, values in family.knobs.items():
            for other in [{**knobs, knob: value} for value in values if value != knobs[knob]]:
                if (cost := _cost(wanted, family, other, problem)) < best:
                    best, knobs = cost, other
    if best == (0, True):
        best, knobs = _permitted(wanted, family, knobs, problem)
    return best, family, knobs


def _permitted(wanted: Marks, family: Family, knobs: Knobs, problem: Problem) -> tuple[Cost, Knobs]:
    """A setting at most two knobs away with the same source that no rule refuses; these knobs where there is none."""
    singles = [{knob: value} for knob, values in family.knobs.items() for value in values if value != knobs[knob]]
    for one, other in combinations(singles, 2):
        near = knobs | one | other
        if not corpus.refusal(family, near, problem) and _cost(wanted, family, near, problem) == (0, False):
            return (0, False), near
    return (0, True), knobs


def _cost(wanted: Marks, family: Family, knobs: Knobs, problem: Problem) -> Cost:
    """How many marks differ, and whether a rule refuses the setting. The descent may pass through refused settings, but
    not through those whose template fails (NOWHERE)."""
    try:
        marks = _marks(corpus.written(family, knobs, problem))
    except (ArithmeticError, LookupError, TypeError):
        return NOWHERE
    differ = (marks - wanted).total() + (wanted - marks).total()
    return differ, bool(corpus.refusal(family, knobs, problem))


def _marks(text: str) -> Marks:
    """What sources are compared by: triples of words that begin with a name, and pairs of adjacent lines."""
    lines = [line.strip() for line in text.splitlines() if not _LIST.search(line)]
    marks: Marks = Counter()
    marks.update(pairwise(lines))
    for line in lines:
        marks.update(_triples(line))
    return marks


@cache
def _triples(line: str) -> Marks:
    words = _WORD.findall(line)
    return Counter(three for three in zip(words, words[1:], words[2:]) if three[0].isidentifier())
