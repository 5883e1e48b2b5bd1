"""Moves a statement past its neighbours in the same block, up or down, by one place or by up to three."""

import random
import re

from cudal2.search.text import declared, indent, is_statement

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
    """Whether both are statements of one block, and neither names what the other declares."""
    if not (is_statement(first) and is_statement(second) and indent(first) == indent(second)) or first == second:
        return False
    return not (declared(first) | declared(second)) & set(_WORD.findall(first)) & set(_WORD.findall(second))
