"""Statements, loops and blocks: left out, doubled, moved, turned round, unrolled, or taken from another kernel."""

import random
import re
from collections import defaultdict
from functools import partial

from cudal2.search.mutations.text import Block, another, blocks, declared, indent, is_code, is_loop, is_statement


def lines(source: str, mate: str, rng: random.Random) -> str | None:
    """Deletes or doubles a statement: barriers, fences, waits and prefetches, above all."""
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


_WORD = re.compile(r"[A-Za-z_]\w*")


def move(source: str, mate: str, rng: random.Random) -> str | None:
    """Moves a statement past its neighbours in the same block, up or down, by one place or by up to three."""
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


_UPWARDS = re.compile(r"for \(int (\w+) = 0; \1 < ([^;]+); \+\+\1\)")


def loops(source: str, mate: str, rng: random.Random) -> str | None:
    """The order of loops: two nested ones change places, or one counts down."""
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
    pairs = []
    for outer in headers:
        inner = outer + 2 if outer + 1 < len(lines) and lines[outer + 1].strip().startswith("#pragma") else outer + 1
        if inner in headers and lines[outer].rstrip().endswith(")"):
            pairs.append((outer, inner))
    return pairs


FACTORS = ["", " 1", " 2", " 4", " 8", " 16"]


def unroll(source: str, mate: str, rng: random.Random) -> str | None:
    """How far a loop is unrolled: a pragma before it is put in, changed or taken out."""
    lines = source.split("\n")
    # OpenMP's pragmas must stay next to their loop.
    loops = [n for n, line in enumerate(lines) if n and is_loop(line) and "omp" not in lines[n - 1]]
    if not loops:
        return None
    place = rng.choice(loops)
    # g++ has another name for the pragma, and wants a number.
    word, factors = ("#pragma unroll", FACTORS) if "cudaError_t" in source else ("#pragma GCC unroll", FACTORS[1:])
    before = lines[place - 1].strip()
    if not before.startswith(word):
        lines.insert(place, word + rng.choice(factors))
    elif rng.random() < 0.3:
        del lines[place - 1]
    else:
        lines[place - 1] = word + another(factors, before.removeprefix(word), rng)
    return "\n".join(lines)


_STRINGS = re.compile(r'"[^"]*"')
_NAME = re.compile(r"(?<![\w.])[A-Za-z]\w*")


def crossing(source: str, mate: str, rng: random.Random) -> str | None:
    """Replaces the body of a function or a loop by that of another kernel's function or loop with the same header.

    So bodies cross between families wherever their headers agree.
    """
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
    return {name for line in lines if is_code(line) for name in _NAME.findall(_STRINGS.sub("", line))}
