"""A block of another kernel in the place of the one that plays the same role here: functions of the same signature,
loops of the same header. Bodies so cross from family to family wherever their interface lines agree.
"""

import random
import re
from collections import defaultdict

from cudal2.search.text import Block, blocks, is_code

_NAMES = re.compile(r"\b(?:[A-Z][A-Z0-9_]*|[A-Za-z_]\w*(?=\())\b")
_KNOWN = {"for", "if", "while", "switch", "return", "sizeof", "asm", "min", "max", "dim3", "float", "int", "size_t"}


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines, others = source.split("\n"), mate.split("\n")
    roles = defaultdict(list)
    for block in blocks(others):
        roles[_role(others, block)].append(_body(others, block))
    defined = set(re.findall(r"\w+", source))
    possible = []
    for block in blocks(lines):
        for body in roles[_role(lines, block)]:
            if _code(body) != _code(_body(lines, block)) and _needs(body) <= defined:
                possible.append((block, body))
    if not possible:
        return None
    block, body = rng.choice(possible)
    return "\n".join([*lines[: block.opened + 1], *body, *lines[block.last :]])


def _role(lines: list[str], block: Block) -> str:
    """Its header, in one line."""
    return " ".join(" ".join(lines[block.first : block.opened + 1]).split())


def _body(lines: list[str], block: Block) -> list[str]:
    return lines[block.opened + 1 : block.last]


def _code(body: list[str]) -> list[str]:
    return [line.strip() for line in body if is_code(line)]


def _needs(body: list[str]) -> set[str]:
    """Constants and functions that the body names, but those of the language and its library."""
    names = {name for line in _code(body) for name in _NAMES.findall(line)}
    return {name for name in names - _KNOWN if not name.startswith("_")}
