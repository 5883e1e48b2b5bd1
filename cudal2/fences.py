"""The fenced blocks of a text that is Markdown as people write it, by a Markdown parser.

Before it is parsed, lines are broken before fences that stand behind other words. The pieces are cut from the text as
it was.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from markdown_it import MarkdownIt

from cudal2 import lexing

DEEPEST = 2
"""So many fences may stand around another: a block of Markdown around the source, and a spare one."""

_MARKDOWN = MarkdownIt("zero").enable("fence")
# A fence behind other words: at the end of a line of code, or where only a language or nothing follows.
_BEHIND = re.compile(
    r"(?<=[;}])[ \t]*(?P<closing>`{3,})(?=[^`\n]*$)"
    r"|(?<=[^\s`~])[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?=[ \t]*(?:[\w+#.-]*|\{[^}\n]{0,99}\})[ \t]*$)",
    re.MULTILINE,
)
_INNER = re.compile(r"^[ \t]*(?:`{3,}[^`\n]*|~{3,}.*)$", re.MULTILINE)
_CPP = {"c", "c++", "cc", "cpp", "cxx", "cu", "cuda"}
_CODE_ON_FENCE = re.compile(r"#\s*(?:include|pragma|define)\b.*|extern\b.*|//.*|/\*.*")


class Piece(msgspec.Struct, frozen=True):
    """A piece of a completion that may be a source; not `closed` where only the end of the text ends it."""

    text: str
    closed: bool = True
    fenced: bool = True


def blocks(text: str) -> list[str]:
    """The fenced blocks of a text whose fences are as Markdown wants them."""
    return [token.content for token in _MARKDOWN.parse(text) if token.type == "fence"]


def pieces(text: str, masks: bool = True, splits: bool = False, depth: int = 0) -> Iterator[Piece]:
    """The fenced blocks of a text, and what stands between them, in order.

    `masks`: a fence in a comment is none. `splits`: a fence behind other words counts in a comment as well.
    """
    done = 0
    for start, first, last, end, closed in _fences(text, masks, splits):
        if gap := text[done:start].strip():
            yield Piece(gap, fenced=False)
        done = end
        inside = _unmarked(text[first:last], text[start:first])
        hidden = _hidden(inside) if masks or depth else inside
        if depth < DEEPEST and _is_markdown(text[start:first], hidden):
            inner = list(pieces(inside, masks or bool(depth), splits, depth + 1))
            yield from (Piece(piece.text, closed or piece.closed) for piece in inner)
        else:
            yield Piece(inside, closed)
    if gap := text[done:].strip():
        yield Piece(gap, closed=False, fenced=False)


def _is_markdown(fence: str, inside: str) -> bool:
    """Whether a block holds fences of its own: not if it is C++ within a longer fence, unless it begins with one."""
    inner = [match.group() for match in _INNER.finditer(inside)]
    opened = re.search(r"(`+|~+)[ \t]*(\{?\.?)([\w+#]*)", fence)
    if not inner or opened is None or opened[3].lower() not in _CPP:
        return bool(inner)
    return inside.lstrip().startswith(inner[0].lstrip()) or any(opened[1] in one for one in inner)


def _unmarked(code: str, fence: str) -> str:
    """The code without the marks of a quotation, or the indentation, that all its lines share with the fence's."""
    blank = re.match(r"[ \t]*", fence)
    for mark in ("> ?", re.escape(blank[0]) if blank else ""):
        if mark and all(re.match(mark, line) or not line.strip() for line in code.split("\n")):
            code = re.sub(f"^{mark}", "", code, flags=re.MULTILINE)
    return code


def _hidden(text: str) -> str:
    """The text without fences in its comments; all else keeps its place."""
    parts, done = [], 0
    for start, end in lexing.comments(text):
        if re.match(r"[\w.]", text[max(start - 1, 0) : start]):  # files of a folder, in prose: src/*
            continue
        parts += [text[done:start], re.sub("[`~]", " ", text[start:end])]
        done = end
    return "".join([*parts, text[done:]])


def _fences(text: str, masks: bool, splits: bool) -> Iterator[tuple[int, int, int, int, bool]]:
    """Of each fenced block where its fence, its code, and what follows the code and the block begin; and whether it
    was closed."""
    plain = lexing.blanked(_hidden(text) if masks else text)
    comments = Spans([] if splits else lexing.comments(text))
    breaks: list[int] = []
    for match in _BEHIND.finditer(plain):
        start, end = match.span("fence") if match["fence"] else match.span("closing")
        if not comments.hold(start):
            breaks += [start] if match["fence"] else [start, end]
    mended = "\n".join(plain[start:end] for start, end in pairwise([0, *breaks, len(plain)]))
    starts, added = [0], 0  # where lines of the mended text begin in `text`
    for newline in re.finditer("\n", mended):
        at_break = added < len(breaks) and newline.start() - added == breaks[added]
        added += at_break
        starts.append(newline.end() - added)
    starts.append(len(text))
    lines = mended.split("\n")
    for token in _MARKDOWN.parse(mended):
        if token.type == "fence" and token.map:
            opened, ended = token.map
            ended = min(ended, len(lines))
            closing = lines[ended - 1].strip()
            closed = ended - opened > 1 and closing.startswith(token.markup) and not closing.strip(token.markup[0])
            code = _CODE_ON_FENCE.search(token.info)
            first = starts[opened + 1] if code is None else starts[opened] + lines[opened].index(code[0])
            last = starts[ended - 1] if closed else starts[ended]
            yield starts[opened], first, max(first, last), starts[ended], closed


class Spans:
    """Sorted stretches of a text; `hold` must be asked for ascending places."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._spans, self._next = spans, 0

    def hold(self, place: int) -> bool:
        while self._next < len(self._spans) and self._spans[self._next][1] <= place:
            self._next += 1
        return self._next < len(self._spans) and self._spans[self._next][0] <= place
