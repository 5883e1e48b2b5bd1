"""A statement too many or too few: barriers, fences, waits and prefetches taken out or said twice."""

import random

from cudal2.search.text import is_statement


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines = source.split("\n")
    # Without a declaration its scope does not compile; twice it neither.
    places = [n for n, line in enumerate(lines) if is_statement(line) and _acts(line.strip())]
    if not places:
        return None
    place = rng.choice(places)
    if rng.random() < 0.7:
        del lines[place]
    else:
        lines.insert(place, lines[place])
    return "\n".join(lines)


def _acts(statement: str) -> bool:
    """Whether it is a call or an assembler statement, which leaves no name behind."""
    name = statement.split("(")[0].split("<")[0]
    return statement.startswith(("asm ", "__")) or (" " not in name and "=" not in statement)
