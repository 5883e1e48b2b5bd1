"""The setting of the kernel families whose source is most like a given one: what somebody wrote, and from where.

Found by coordinate descent over the knobs; the distance is what only one of two sources has of word triples and of
neighbouring lines. It may end beside the nearest one: from nothing it finds a rendering again 99 times in 100. From
the setting that an author wrote down it has less far to go.
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
from cudal2.problem import Layout
from cudal2.target import Target

STARTS = 6
"""Random settings of each family from which a descent may begin where nothing is known of a source."""
FAMILIES = 3
"""So many of the nearest families are descended into then."""

_WORD = re.compile(r"\w+|[^\w\s]")
_LIST = re.compile(r"(?:%\d+, ){8}|\"\+[fr]\"\(")
"""Operands of a matrix instruction, line after line: so many that they would drown the rest."""
_PLAN_LINE = re.compile(r"// [a-z]\w*: .*")

Marks = Counter[tuple[str, ...]]
Cost = tuple[float, bool]
NOWHERE: Cost = (float("inf"), True)


class Nearest(msgspec.Struct, frozen=True):
    """The nearest rendering of a source.

    `refused` says why the families do not render that setting, "" where they do; `changed` counts the lines that the
    source lacks and those it has instead; 0 of them and no refusal mean that the source is a rendering.
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


def nearest(text: str, target: Target, layout: Layout, family: str = "", knobs: Knobs | None = None) -> Nearest:
    """What the target's families render that is nearest to `text`, not counting the plan that it may begin with.

    The descent begins with the setting that its plan states, else with `family` and `knobs` where they are still a
    setting, else with random ones of every family. Raises ValueError where no family has a kernel of that layout.
    """
    by_name = {one.name: one for one in corpus.families(target) if layout in one.layouts}
    body = without_plan(text)
    wanted, stated = _marks(body), corpus.stated(text, target)
    name, setting = stated or (family, knobs or {})
    if name in by_name and _complete(by_name[name], setting):
        starts = [(by_name[name], setting)]
    else:
        starts = _starts(wanted, list(by_name.values()), layout)
    if not starts:
        raise ValueError(f"no family in data/families has a {layout} kernel for {target.name}")
    found = (_descend(wanted, one, values, layout) for one, values in starts)
    _, best, values = min(found, key=lambda one: one[0])
    source = corpus.written(best, values, layout)
    return Nearest(best.name, values, source, corpus.refusal(best, values, layout), changed_lines(source, body))


def without_plan(text: str) -> str:
    """The source without the plan that it may begin with."""
    if not text.startswith(corpus.PLAN):
        return text
    lines = text.splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if not _PLAN_LINE.match(line)), len(lines))
    return "".join(lines[first:])


def changed_lines(one: str, other: str) -> int:
    """Lines that only one of two sources has, as a unified diff shows them."""
    return sum(line[:1] in "+-" for line in difference(one, other)[2:])


def difference(one: str, other: str) -> list[str]:
    """A unified diff without its file names' line ends; empty where both are the same."""
    return list(difflib.unified_diff(one.splitlines(), other.splitlines(), "rendered", "written", lineterm=""))


def _complete(family: Family, knobs: Knobs) -> bool:
    return knobs.keys() == family.knobs.keys() and all(value in family.knobs[knob] for knob, value in knobs.items())


def _starts(wanted: Marks, families: list[Family], layout: Layout) -> list[tuple[Family, Knobs]]:
    """Of each family the nearest of some settings; of these the nearest few."""
    found = []
    for family in families:
        rng = random.Random(family.name)
        some = [{knob: rng.choice(values) for knob, values in family.knobs.items()} for _ in range(STARTS)]
        found.append(min(((_cost(wanted, family, knobs, layout), family, knobs) for knobs in some), key=_first))
    return [(family, knobs) for _, family, knobs in sorted(found, key=_first)[:FAMILIES]]


def _first(found: tuple[Cost, Family, Knobs]) -> Cost:
    return found[0]


def _descend(wanted: Marks, family: Family, knobs: Knobs, layout: Layout) -> tuple[Cost, Family, Knobs]:
    """One knob after another at its best value, as long as that brings the source nearer."""
    best, before = _cost(wanted, family, knobs, layout), NOWHERE
    while (0, False) < best < before:
        before = best
        for knob, values in family.knobs.items():
            for other in [{**knobs, knob: value} for value in values if value != knobs[knob]]:
                if (cost := _cost(wanted, family, other, layout)) < best:
                    best, knobs = cost, other
    if best == (0, True):
        best, knobs = _permitted(wanted, family, knobs, layout)
    return best, family, knobs


def _permitted(wanted: Marks, family: Family, knobs: Knobs, layout: Layout) -> tuple[Cost, Knobs]:
    """A setting that writes the same and is not refused, two knobs away at most; the same where there is none."""
    singles = [{knob: value} for knob, values in family.knobs.items() for value in values if value != knobs[knob]]
    for one, other in combinations(singles, 2):
        near = knobs | one | other
        if not corpus.refusal(family, near, layout) and _cost(wanted, family, near, layout) == (0, False):
            return (0, False), near
    return (0, True), knobs


def _cost(wanted: Marks, family: Family, knobs: Knobs, layout: Layout) -> Cost:
    """How many marks differ, and whether the setting is refused: such ones lie on the way to others. Those that cannot
    even be written do not."""
    try:
        marks = _marks(corpus.written(family, knobs, layout))
    except (ArithmeticError, LookupError, TypeError):
        return NOWHERE
    differ = (marks - wanted).total() + (wanted - marks).total()
    return differ, bool(corpus.refusal(family, knobs, layout))


def _marks(text: str) -> Marks:
    """What a source is compared by: triples of words, of which the first is a name, and pairs of lines."""
    lines = [line.strip() for line in text.splitlines() if not _LIST.search(line)]
    found: Marks = Counter()
    found.update(pairwise(lines))
    for line in lines:
        found.update(_triples(line))
    return found


@cache
def _triples(line: str) -> Marks:
    words = _WORD.findall(line)
    return Counter(three for three in zip(words, words[1:], words[2:]) if three[0].isidentifier())
