"""The order of loops: two nested ones change places, or one counts down."""

import random
import re

from cudal2.search.text import is_loop

_UPWARDS = re.compile(r"for \(int (\w+) = 0; \1 < ([^;]+); \+\+\1\)")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines = source.split("\n")
    nested = [pair for pair in _nested(lines) if lines[pair[0]].strip() != lines[pair[1]].strip()]
    upwards = [n for n, line in enumerate(lines) if _UPWARDS.search(line)]
    if nested and (not upwards or rng.random() < 0.5):
        outer, inner = rng.choice(nested)
        one, other = lines[outer].strip(), lines[inner].strip()
        # A brace stays where it was.
        brace = " {" * other.endswith("{")
        lines[outer] = lines[outer].replace(one, other.removesuffix(" {"))
        lines[inner] = lines[inner].replace(other, one + brace)
        return "\n".join(lines)
    if upwards:
        place = rng.choice(upwards)
        lines[place] = _UPWARDS.sub(r"for (int \1 = \2 - 1; \1 >= 0; --\1)", lines[place], count=1)
        return "\n".join(lines)
    return None


def _nested(lines: list[str]) -> list[tuple[int, int]]:
    """Pairs of headers, one right behind the other or with a pragma between, that have nothing else on their lines."""
    headers = [n for n, line in enumerate(lines) if is_loop(line) and line.rstrip().endswith((")", ") {"))]
    found = []
    for outer in headers:
        inner = outer + 2 if outer + 1 < len(lines) and lines[outer + 1].strip().startswith("#pragma") else outer + 1
        if inner in headers and lines[outer].rstrip().endswith(")"):
            found.append((outer, inner))
    return found
