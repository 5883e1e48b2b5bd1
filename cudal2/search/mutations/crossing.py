"""Replaces the body of a function or a loop by that of another kernel's function or loop with the same header.

So bodies cross between families wherever their headers agree.
"""

import random
import re
from collections import defaultdict
from functools import partial

from cudal2.search.text import Block, blocks, declared, indent, is_code, is_loop

_STRINGS = re.compile(r'"[^"]*"')
_WORD = re.compile(r"(?<![\w.])[A-Za-z]\w*")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines, others = source.split("\n"), mate.split("\n")
    roles = defaultdict(list)
    for block in filter(partial(_has_role, others), blocks(others)):
        roles[_role(others, block)].append(_body(others, block))
    here = blocks(lines)
    possible = []
    for block in filter(partial(_has_role, lines), here):
        if bodies := roles[_role(lines, block)]:
            known = _known(lines, block, here)
            possible += [
                (block, body) for body in bodies if _differ(body, _body(lines, block)) and _words(body) <= known
            ]
    if not possible:
        return None
    block, body = rng.choice(possible)
    return "\n".join([*lines[: block.opened + 1], *body, *lines[block.last :]])


def _has_role(lines: list[str], block: Block) -> bool:
    """Whether the header says what a block is for: those of functions and loops do, those of conditions do not."""
    return indent(lines[block.first]) == 0 or is_loop(lines[block.first])


def _role(lines: list[str], block: Block) -> str:
    """Its header, in one line."""
    return " ".join(" ".join(lines[block.first : block.opened + 1]).split())


def _body(lines: list[str], block: Block) -> list[str]:
    return lines[block.opened + 1 : block.last]


def _differ(one: list[str], other: list[str]) -> bool:
    """Whether two bodies differ in more than comments."""
    return [line.strip() for line in one if is_code(line)] != [line.strip() for line in other if is_code(line)]


def _known(lines: list[str], block: Block, all_blocks: list[Block]) -> set[str]:
    """The names that a body in the place of this block may use: those of its function and those outside of all."""
    function = min(other for other in all_blocks if other.first <= block.first and block.last <= other.last)
    inside = {line for other in all_blocks for line in range(other.opened + 1, other.last)}
    outside = [line for number, line in enumerate(lines) if number not in inside]
    return _named(outside) | _named(lines[function.first : function.last])


def _words(body: list[str]) -> set[str]:
    """Names that a body uses and does not declare."""
    return _named(body) - {name for line in body for name in declared(line)}


def _named(lines: list[str]) -> set[str]:
    return {name for line in lines if is_code(line) for name in _WORD.findall(_STRINGS.sub("", line))}
