"""From a completion's text to a source the worker may build.

The checks here give an early, readable reason and keep the compiler's inputs to the toolkit's own headers.
They are no defence by themselves: the jail is (see `worker/sandbox/jail.py`).
"""

import re

from cudal2.completion import read
from cudal2.lexing import DIRECTIVE, TOKEN, joined
from cudal2.target import Target

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


def check(source: str, target: Target, headers: frozenset[str] = frozenset()) -> None:
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
