"""Deletes or doubles a statement: barriers, fences, waits and prefetches, above all."""

import random

from cudal2.search.text import is_statement


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines = source.split("\n")
    # Deleting or doubling a declaration would not compile.
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
    """Whether it is a call or an assembler statement, which declares no name."""
    name = statement.split("(")[0].split("<")[0]
    return statement.startswith(("asm ", "__")) or (" " not in name and "=" not in statement)
