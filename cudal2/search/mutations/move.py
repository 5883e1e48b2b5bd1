"""A statement past its neighbour in the same block, up or down; more than one place away every other time."""

import random
import re

from cudal2.search.text import indent, is_statement

_DECLARED = re.compile(r"(?:const |constexpr |auto |unsigned )*[\w:<>]+[ *&]+(\w+)(?:\[[^\]]*\])* =")
_WORD = re.compile(r"[A-Za-z_]\w*")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines = source.split("\n")
    places = [n for n in range(1, len(lines)) if _may_swap(lines[n - 1], lines[n])]
    if not places:
        return None
    place = rng.choice(places)
    step = rng.choice((-1, 1))
    upper = place - 1 if step > 0 else place
    for _ in range(rng.choice((1, 1, 2, 3))):
        one, other = sorted((upper, upper + step))
        if one < 0 or other >= len(lines) or not _may_swap(lines[one], lines[other]):
            break
        lines[one], lines[other] = lines[other], lines[one]
        upper += step
    return "\n".join(lines)


def _may_swap(first: str, second: str) -> bool:
    """Whether both are statements of one block, and the second does not name what the first declares."""
    if not (is_statement(first) and is_statement(second) and indent(first) == indent(second)) or first == second:
        return False
    declared = {match[1] for match in _DECLARED.finditer(first)} | {match[1] for match in _DECLARED.finditer(second)}
    return not declared & set(_WORD.findall(first)) & set(_WORD.findall(second))
