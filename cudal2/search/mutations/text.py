"""A kernel's source as lines, statements, loops and blocks, as far as its layout shows them; C++ is not parsed.

Sources are expected to be laid out like the families': one statement per line, blocks by indentation. Other layouts
offer fewer places to change, and a wrong guess gives a kernel that does not compile.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_CONTROL = re.compile(
    r"(?:return|if|else|for|while|do|switch|case|default|break|continue|goto|using|typedef|struct|template|"
    r"namespace|extern|static_assert)\b|[#}{:%\"/]"
)
_DECLARED = re.compile(
    r"(?:^\s*|\()(?:const |constexpr |static |unsigned )*(?!return\b)[\w:<>]+[*&]* [*&]*(\w+)(?:\[[^\]]*\])*(?= =|;)"
    r"|, (\w+)(?= =)"
)
_FOR = re.compile(r"[ \t]*for \(")


Change = Callable[[re.Match[str]], str | None]
"""The replacement for a match; None to leave it."""


class Block(NamedTuple):
    """A block as line numbers: its header begins at `first` and ends at `opened` with a brace; `last` closes it."""

    first: int
    opened: int
    last: int


def indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def is_code(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("//")


def change_one(source: str, changes: Sequence[tuple[re.Pattern[str], Change]], rng: random.Random) -> str | None:
    """The source with one match of one of these patterns changed: the pattern is drawn uniformly, then the match.

    Comment lines are left alone, and so is a match whose change returns None or the same text.
    None where no match can be changed.
    """
    for pattern, change in rng.sample(changes, len(changes)):
        matches = [match for match in pattern.finditer(source) if is_code(_line(source, match.start()))]
        for match in rng.sample(matches, len(matches)):
            new = change(match)
            if new is not None and new != match[0]:
                return source[: match.start()] + new + source[match.end() :]
    return None


def _line(source: str, place: int) -> str:
    """The line that `place` is on."""
    return source[source.rfind("\n", 0, place) + 1 :].partition("\n")[0]


def another(values: list[str], now: str, rng: random.Random) -> str:
    """One of `values`, but not the present one."""
    return rng.choice([value for value in values if value != now])


def is_statement(line: str) -> bool:
    """Whether an indented line holds whole statements and nothing else: no control, no declaration of types."""
    text = line.strip()
    whole = text.endswith(";") and text.count("(") == text.count(")") and text.count("{") == text.count("}")
    return whole and indent(line) > 0 and not _CONTROL.match(text)


def declared(line: str) -> set[str]:
    """Names that a line may declare; of several in one line, those with an initial value."""
    return {match[1] or match[2] for match in _DECLARED.finditer(line)}


def is_loop(line: str) -> bool:
    """Whether a loop's header begins the line."""
    return bool(_FOR.match(line))


def blocks(lines: list[str]) -> list[Block]:
    """Every block that ends on a line of its own, as deep as its header."""
    found = []
    for opened, line in enumerate(lines):
        if not line.endswith("{") or not is_code(line):
            continue
        first = opened
        # A header of several lines: all but its last end with one of these characters.
        while first and is_code(lines[first - 1]) and lines[first - 1].rstrip()[-1] in ",(&|=":
            first -= 1
        depth = indent(lines[first])
        last = next((n for n in range(opened + 1, len(lines)) if is_code(lines[n]) and indent(lines[n]) <= depth), 0)
        if last and lines[last].strip().startswith("}"):
            found.append(Block(first, opened, last))
    return found
