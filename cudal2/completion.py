"""Where the kernel is in what a model wrote, or why there is none.

A completion is Markdown as people write it: fences may stand behind other words, close at the end of a line of code, or
be missing; thoughts and answers stand in tags. A Markdown parser reads it after what nobody meant was mended.

The rule: the last fenced block that defines the entry point is the kernel. Without one it is the text outside the
blocks, if that is code beside at most some prose before and behind it. What stands in `<think>` counts only where
nothing behind it does. The source is a piece of the completion, character by character, but for line ends, blanks
at both ends, and characters that nobody sees (`lexing.visible`).
"""

import re
from collections.abc import Iterator, Sequence

import msgspec
from markdown_it import MarkdownIt

from cudal2 import lexing
from cudal2.contract import ENTRY
from cudal2.problem import Problem
from cudal2.records import Candidate

EMPTY = "the answer is empty"
CUT_OFF = "the answer was cut off before its code ended: write a shorter one"
CUT_OFF_THINKING = "the answer was cut off within its thoughts: think less, and give the source"
PYTHON = "this is Python, and the source must be C++"
NO_BLOCK = "no fenced block: give the whole source between two lines of ```"
NO_ENTRY = f"the code does not define {ENTRY}"

LONGEST = 1 << 18
"""Of a longer completion only the last so many characters are read."""
DEEPEST = 2
"""So many fences may stand around another: a block of Markdown around the source, and a spare one."""

_MARKDOWN = MarkdownIt("zero").enable("fence")
_TAG = re.compile(
    r"(?:(?P<shut></)|(?<![\w<])<)(?:(?P<thought>think(?:ing)?|thoughts?|reasoning)|(?:final_?)?answer|solution)>"
    r"|<\|\w{1,40}\|>|</s>",
    re.IGNORECASE,
)
# A fence behind other words: at the end of a line of code, or where only a language or nothing follows.
_BEHIND = re.compile(
    r"(?<=[;}])[ \t]*(?P<closing>`{3,})(?=[^`\n]*$)"
    r"|(?<=[^\s`~])[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?=[ \t]*(?:[\w+#.-]*|\{[^}\n]*\})[ \t]*$)",
    re.MULTILINE,
)
_INNER = re.compile(r"^[ \t]*(?:`{3,}[^`\n]*|~{3,}.*)$", re.MULTILINE)
_PYTHON = re.compile(
    r"^[ \t]*(?:import [\w.]+(?:[ \t]+as \w+)?[ \t]*$|from [\w.]+ import \S|(?:async )?def \w+\(|@(?:triton|torch)\b)",
    re.MULTILINE,
)
_CODE = re.compile(
    r"\s*(?:#\s*(?:include|define|undef|ifn?def|if|elif|else|endif|pragma|error|warning)\b|[{}\[)&|=]"
    r"|(?:extern|template|static|inline|constexpr|const|using|namespace|typedef|struct|class|enum|union|void|int|float"
    r"|double|auto|unsigned|signed|long|short|bool|char|size_t|half2?|u?int\d+_t|__\w+|_Float16|alignas|asm)\b)"
)
_PROSE = re.compile(
    r"[.!?:…]\s*$|\b[A-Za-z']{2,30}[,:.!?]? [`*(]*[A-Za-z']{1,30}[,:.!?]? [`*(]*[A-Za-z']|^\s*(?:#{1,6}|[-*]|\d+\.) |^\s*[-=*]{3,}\s*$"
    r"|^\s*(?:c|cpp|c\+\+|cuda)\s*$|\*\*"
)


class Found(msgspec.Struct, frozen=True):
    """The source in a completion; where there is none, it is "", and `missing` says why."""

    source: str = ""
    missing: str = ""

    def candidate(self, problem: Problem, target: str) -> Candidate:
        """What is judged; without a source it says so, and why."""
        return Candidate(self.source, problem, target, missing=self.missing)


class _Piece(msgspec.Struct, frozen=True):
    """A piece of a completion that may be a source; not `closed` where only the end of the text ends it."""

    text: str
    closed: bool = True
    fenced: bool = True


def read(completion: str) -> Found:
    """The kernel in a completion, by the rule above."""
    text = re.sub(r"\r\n?", "\n", completion[-LONGEST:].encode("utf-8", "replace").decode())
    if not lexing.blanked(text).strip():
        return Found(missing=EMPTY)
    answer, thoughts, unfinished = _sections(text)
    if (found := _kernel(answer)).source or unfinished:
        return found if found.source else Found(missing=CUT_OFF_THINKING)
    drafted = _kernel(thoughts)
    return drafted if drafted.source else found if any(map(str.strip, answer)) else drafted


def blocks(text: str) -> list[str]:
    """The fenced blocks of a text whose fences are as Markdown wants them."""
    return [token.content for token in _MARKDOWN.parse(text) if token.type == "fence"]


def _sections(text: str) -> tuple[list[str], list[str], bool]:
    """What stands between tags: the answer, the thoughts; and whether the text ends within a thought."""
    comments = _Spans(lexing.comments(text))
    answer: list[str] = []
    thoughts: list[str] = []
    thinking, done = False, 0
    for tag in _TAG.finditer(lexing.blanked(text)):
        if comments.hold(tag.start()):
            continue
        (thoughts if thinking else answer).append(text[done : tag.start()])
        done = tag.end()
        if tag["thought"]:
            thinking = not tag["shut"]
            if tag["shut"] and not thoughts:  # templates may open the thoughts in the prompt
                answer, thoughts = [], answer
    (thoughts if thinking else answer).append(text[done:])
    return answer, thoughts, thinking


class _Spans:
    """Sorted stretches of a text; `hold` must be asked for ascending places."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._spans, self._next = spans, 0

    def hold(self, place: int) -> bool:
        while self._next < len(self._spans) and self._spans[self._next][1] <= place:
            self._next += 1
        return self._next < len(self._spans) and self._spans[self._next][0] <= place


def _kernel(sections: Sequence[str]) -> Found:
    """The kernel in what a model says at once, which tags may divide."""
    pieces = [piece for section in sections for piece in _pieces(section)]
    best: _Piece | None = None
    for piece in _choices(sections, pieces):
        if best is None or _rank(piece) > _rank(best):
            best = piece
        if all(_rank(best)):
            break
    if best is None:
        return Found(missing=_missing(pieces))
    code = best.text if best.closed else _without_prose(best.text)
    if not best.closed and lexing.open_braces(code) > 0:
        return Found(missing=CUT_OFF)
    return Found(lexing.visible(code).strip() + "\n")


def _choices(sections: Sequence[str], pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    """What may be the kernel, the likelier first; `pieces` are those of the sections.

    A fence in a comment is none, unless that leaves no whole kernel; then even one behind `//` may be one.
    """
    yield from (fenced := _last(pieces, fenced=True))
    for piece in _last(pieces, fenced=False) if not fenced else ():
        code = _without_prose(piece.text)
        if _defines(_Piece(code)) and not any(_outer_prose(code)):
            yield _Piece(code, closed=lexing.whole(code))
    for splits in (False, True):
        yield from _last([piece for section in sections for piece in _pieces(section, False, splits)], fenced=True)


def _last(pieces: Sequence[_Piece], fenced: bool) -> list[_Piece]:
    """The last of the pieces within fences, or outside them, that defines the entry point."""
    return next(([piece] for piece in reversed(pieces) if piece.fenced is fenced and _defines(piece)), [])


def _rank(piece: _Piece) -> tuple[bool, bool]:
    return lexing.whole(piece.text), piece.closed


def _defines(piece: _Piece) -> bool:
    text = lexing.visible(piece.text)
    return ENTRY in text and lexing.defines(text, ENTRY) and not _is_python(text)


def _is_python(text: str) -> bool:
    return _PYTHON.search(lexing.masked(lexing.blanked(text))) is not None


def _missing(pieces: Sequence[_Piece]) -> str:
    """Why none of these pieces is a kernel."""
    if _is_python("\n".join(piece.text for piece in pieces)):
        return PYTHON
    if fenced := [piece for piece in pieces if piece.fenced]:
        return NO_ENTRY if all(piece.closed for piece in fenced) else CUT_OFF
    text = "".join(piece.text for piece in pieces)
    code = _without_prose(text)
    if not any(map(_CODE.match, lexing.masked(code).split("\n"))):
        return EMPTY if not text.strip() else NO_BLOCK
    return CUT_OFF if lexing.open_braces(code) > 0 else NO_BLOCK if any(_outer_prose(code)) else NO_ENTRY


def _pieces(text: str, masks: bool = True, splits: bool = False, depth: int = 0) -> Iterator[_Piece]:
    """The fenced blocks of a text, and what stands between them, in order.

    `masks`: a fence in a comment is none. `splits`: a fence behind other words counts in a comment as well.
    """
    done = 0
    for start, first, last, end, closed in _fences(text, masks, splits):
        if gap := text[done:start].strip():
            yield _Piece(gap, fenced=False)
        done = end
        inside = _unmarked(text[first:last], text[start:first])
        hidden = _hidden(inside) if masks or depth else inside
        if depth < DEEPEST and _INNER.search(hidden):
            inner = list(_pieces(inside, masks or bool(depth), splits, depth + 1))
            yield from (_Piece(piece.text, closed or piece.closed) for piece in inner)
        else:
            yield _Piece(inside, closed)
    if gap := text[done:].strip():
        yield _Piece(gap, closed=False, fenced=False)


def _unmarked(code: str, fence: str) -> str:
    """The code without the marks of a quotation, or the indentation, that all its lines share with the fence's."""
    blank = re.match(r"[ \t]*", fence)
    for mark in ("> ?", re.escape(blank[0]) if blank else ""):
        if mark and all(re.match(mark, line) or not line.strip() for line in code.split("\n")):
            code = re.sub(f"^{mark}", "", code, flags=re.MULTILINE)
    return code


def _hidden(text: str) -> str:
    """The text without fences in its comments; all else keeps its place."""
    pieces, done = [], 0
    for start, end in lexing.comments(text):
        if re.match(r"[\w.]", text[max(start - 1, 0) : start]):  # files of a folder, in prose: src/*
            continue
        pieces += [text[done:start], re.sub("[`~]", " ", text[start:end])]
        done = end
    return "".join([*pieces, text[done:]])


def _fences(text: str, masks: bool, splits: bool) -> Iterator[tuple[int, int, int, int, bool]]:
    """Of each fenced block where its fence, its code, and what follows the code and the block begin; and whether it
    was closed."""
    plain = lexing.blanked(_hidden(text) if masks else text)
    comments = _Spans([] if splits else lexing.comments(text))
    breaks: list[int] = []
    for found in _BEHIND.finditer(plain):
        start, end = found.span("fence") if found["fence"] else found.span("closing")
        if not comments.hold(start):
            breaks += [start] if found["fence"] else [start, end]
    pieces, done = [], 0
    for place in breaks:
        pieces.append(plain[done:place])
        done = place
    mended = "\n".join([*pieces, plain[done:]])
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


_CODE_ON_FENCE = re.compile(r"#\s*(?:include|pragma|define)\b.*|extern\b.*|//.*|/\*.*")


def _prose(line: str) -> bool:
    """Whether a line, without comments and literals, is a person's language."""
    if _CODE.match(line) or line.rstrip().endswith((";", "{", "}", "\\", ",", "(", ")")):
        return False
    return _PROSE.search(line) is not None


def _without_prose(text: str) -> str:
    """The text without blank lines and prose at its beginning and its end."""
    lines = list(zip(text.split("\n"), lexing.masked(text).split("\n")))
    droppable = [not line.strip() or (bool(code.strip()) and _prose(code)) for line, code in lines]
    first, last = 0, len(lines)
    while first < last and droppable[first]:
        first += 1
    while last > first and droppable[last - 1]:
        last -= 1
    return "\n".join(line for line, _ in lines[first:last])


def _outer_prose(text: str) -> Iterator[str]:
    """The lines of prose that stand outside all braces."""
    depth = 0
    for line in lexing.masked(lexing.joined(text)).split("\n"):
        if depth <= 0 and line.strip() and _prose(line):
            yield line
        depth += line.count("{") - line.count("}")
