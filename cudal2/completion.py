"""Where the kernel is in what a model wrote, or why there is none; and whether the worker may build it.

A completion is Markdown as people write it: fences may stand behind other words, close at the end of a line of code, or
be missing; thoughts and answers stand in tags. A Markdown parser reads it after what nobody meant was mended.

The rule: the last fenced block that defines the entry point is the kernel. Without one it is the text outside the
blocks, if that is code beside at most some prose before and behind it. What stands in `<think>` counts only where
nothing behind it does. The source is a piece of the completion, character by character, but for line ends, blanks
at both ends, and characters that nobody sees (`lexing.visible`).

`check_source` gives an early, readable reason and keeps the compiler's inputs to the toolkit's own headers. It is no
defence by itself: the jail is (see `worker/sandbox/jail.py`).
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from cudal2 import lexing
from cudal2.contract import ENTRY
from cudal2.fences import Piece, Spans, pieces
from cudal2.lexing import DIRECTIVE, TOKEN, joined
from cudal2.problem import Problem
from cudal2.records import Candidate
from cudal2.target import Target

EMPTY = "the answer is empty"
CUT_OFF = "the answer was cut off before its code ended: write a shorter one"
CUT_OFF_THINKING = "the answer was cut off within its thoughts: think less, and give the source"
PYTHON = "this is Python, and the source must be C++"
NO_BLOCK = "no fenced block: give the whole source between two lines of ```"
NO_ENTRY = f"the code does not define {ENTRY}"

LONGEST = 1 << 17
"""Of a longer completion only the last so many characters are read."""
_TAG = re.compile(
    r"(?:(?P<shut></)|(?<![\w<])<)(?:(?P<thought>think(?:ing)?|thoughts?|reasoning)|(?:final_?)?answer|solution)>"
    r"|<\|\w{1,40}\|>|</s>",
    re.IGNORECASE,
)
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
    r"[.!?:…]\s*$|\b[A-Za-z']{2,30}[,:.!?]? [`*(]*[A-Za-z']{1,30}[,:.!?]? [`*(]*[A-Za-z']"
    r"|^\s*(?:#{1,6}|[-*]|\d+\.) |^\s*[-=*]{3,}\s*$"
    r"|^\s*(?:c|cpp|c\+\+|cuda)\s*$|\*\*"
)


class Found(msgspec.Struct, frozen=True):
    """The source in a completion; where there is none, it is "", and `missing` says why."""

    source: str = ""
    missing: str = ""

    def candidate(self, problem: Problem, target: str) -> Candidate:
        """What is judged; without a source it says so, and why."""
        return Candidate(self.source, problem, target, missing=self.missing)


def read(completion: str) -> Found:
    """The kernel in a completion, by the rule above."""
    return _read(completion[-LONGEST:])


@lru_cache(maxsize=512)
def _read(end: str) -> Found:
    """Remembered, for it takes 20 ms and more, is asked for when a text is written and once more with its batch, and a
    policy writes many texts more than once. Only the end is kept: an answer may have megabytes."""
    text = lexing.lines(end.encode("utf-8", "replace").decode())
    if not lexing.blanked(text).strip():
        return Found(missing=EMPTY)
    answer, thoughts, unfinished = _sections(text)
    if (answered := _kernel(answer)).source or unfinished:
        return answered if answered.source else Found(missing=CUT_OFF_THINKING)
    drafted = _kernel(thoughts)
    return drafted if drafted.source else answered if any(map(str.strip, answer)) else drafted


def _sections(text: str) -> tuple[list[str], list[str], bool]:
    """What stands between tags: the answer, the thoughts; and whether the text ends within a thought."""
    comments = Spans(lexing.comments(text))
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


def _kernel(sections: Sequence[str]) -> Found:
    """The kernel in what a model says at once, which tags may divide."""
    all_pieces = [piece for section in sections for piece in pieces(section)]
    best: Piece | None = None
    for piece in _choices(sections, all_pieces):
        if _whole(piece):
            best = piece
            break
        best = best or piece
    if best is None:
        return Found(missing=_missing(all_pieces))
    code = best.text if best.closed else _without_prose(best.text)
    if not best.closed and lexing.open_braces(code) > 0:
        return Found(missing=CUT_OFF)
    return Found(lexing.visible(code).strip() + "\n")


def _choices(sections: Sequence[str], all_pieces: Sequence[Piece]) -> Iterator[Piece]:
    """What may be the kernel, the likelier first; `found` are the pieces of the sections.

    A fence in a comment is none, unless that leaves no whole kernel; then even one behind `//` may be one.
    """
    yield from (fenced := _last(all_pieces, fenced=True))
    for piece in _last(all_pieces, fenced=False) if not fenced else ():
        code = _without_prose(piece.text)
        if _defines(Piece(code)) and not any(_outer_prose(code)):
            yield Piece(code, closed=lexing.whole(code))
    for splits in (False, True):
        yield from _last([piece for section in sections for piece in pieces(section, False, splits)], fenced=True)


def _last(all_pieces: Sequence[Piece], fenced: bool) -> list[Piece]:
    """The last of the pieces within fences, or outside them, that defines the entry point."""
    return next(([piece] for piece in reversed(all_pieces) if piece.fenced is fenced and _defines(piece)), [])


def _whole(piece: Piece) -> bool:
    """Whether a piece is a source from its beginning to its end, as far as that shows."""
    if piece.closed:
        return lexing.whole(piece.text)
    code = _without_prose(piece.text)
    return lexing.whole(code) and not any(_outer_prose(code))


def _defines(piece: Piece) -> bool:
    text = lexing.visible(piece.text)
    return ENTRY in text and lexing.defines(text, ENTRY) and not _is_python(text)


def _is_python(text: str) -> bool:
    return _PYTHON.search(lexing.masked(lexing.blanked(text))) is not None


def _missing(all_pieces: Sequence[Piece]) -> str:
    """Why none of these pieces is a kernel."""
    if _is_python("\n".join(piece.text for piece in all_pieces)):
        return PYTHON
    if fenced := [piece for piece in all_pieces if piece.fenced]:
        return NO_ENTRY if all(piece.closed for piece in fenced) else CUT_OFF
    text = "".join(piece.text for piece in all_pieces)
    code = _without_prose(text)
    if not any(map(_CODE.match, lexing.masked(code).split("\n"))):
        return EMPTY if not text.strip() else NO_BLOCK
    return CUT_OFF if lexing.open_braces(code) > 0 else NO_BLOCK if any(_outer_prose(code)) else NO_ENTRY


def _prose(line: str) -> bool:
    """Whether a line, without comments and literals, is a person's language."""
    if _CODE.match(line) or re.search(r"[{}]|[;\\,()]\s*$", line):
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


MAX_BYTES = 64 * 1024
"""Longest source accepted, in bytes."""

_INCLUDES = {"include", "include_next", "import", "embed"}
_FORBIDDEN = {
    "__has_include or __has_embed": r"__has_(?:include|include_next|embed)\b",
    "an assembler directive that reads files or makes sections": r"\.(?:incbin|include|file|(?:push|sub)?section)\b",
    "#pragma GCC pch/system_header tricks": (
        r"""(?:#\s*pragma|%:\s*pragma|_Pragma\s*\(\s*")\s*GCC\s+(?:pch_preprocess|system_header|dependency)"""
    ),
}


class SourceRejected(ValueError):
    """The source breaks a rule of the contract; the message says which."""


def extract(completion: str, target: Target) -> str | None:
    """The kernel source in a completion, None where there is none; `completion.read` states the rule, and says why."""
    return read(completion).source or None


def fenced(text: str, language: str = "") -> str:
    """The text as one fenced block of Markdown, by a fence that no line of it can close: `extract` finds it again."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def check_source(source: str, target: Target, headers: frozenset[str] = frozenset()) -> None:
    """Raises SourceRejected where the source is too long, includes a foreign header, or probes the host.

    `headers` are allowed beside the target's own.
    """
    size = len(source.encode())
    if size > MAX_BYTES:
        raise SourceRejected(f"the source has {size} bytes; at most {MAX_BYTES} are accepted")
    if "\0" in source:
        raise SourceRejected("the source contains a NUL byte")
    code = TOKEN.sub(_without_comment, joined(source))
    for name, pattern in _FORBIDDEN.items():
        if re.search(pattern, code):
            raise SourceRejected(f"{name} is not allowed in a kernel")
    for directive, argument in DIRECTIVE.findall(code):
        if directive in _INCLUDES and not _allowed(argument.strip(), target, headers):
            known = ", ".join((*sorted(target.includes), *(f"{folder}*" for folder in target.include_folders)))
            raise SourceRejected(f"#{directive} {argument.strip()[:80]} is not allowed; allowed: {known}")
        if directive == "line" or directive.isdecimal():  # compilers quote the lines of the file it names
            raise SourceRejected("#line is not allowed in a kernel")


def _without_comment(token: re.Match[str]) -> str:
    if token["raw"]:  # what follows could not be told from directives and comments
        raise SourceRejected("a raw string literal is not allowed in a kernel")
    return " " if token["comment"] else token[0]


def _allowed(argument: str, target: Target, headers: frozenset[str]) -> bool:
    """Whether a directive names one of the target's headers, or one in a folder of its, and nothing else."""
    match = re.fullmatch(r'<([\w./+-]+)>|"([\w./+-]+)"', argument)
    if match is None:
        return False
    header = match[1] or match[2]
    inside = header.startswith(target.include_folders) and ".." not in header.split("/")
    return header in target.includes | headers or inside
