"""From a completion's text to a source the worker may build.

The checks here give an early, readable reason and keep the compiler's inputs to the toolkit's own headers.
They are no defence by themselves: the jail is (see `worker/sandbox/jail.py`).
"""

import re

from cudal2.contract import ENTRY
from cudal2.target import Target

MAX_BYTES = 64 * 1024
"""Longest source accepted, in bytes."""

# A line that fences code in Markdown: three or more backticks or tildes, then words such as the language.
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})(.*)")
# What C++ reads before it looks for directives: literals, words, numbers (1'000), comments. A quote that begins is a
# token whatever follows: if it failed at the end of the text, the next one would be read as far again.
_TOKEN = re.compile(
    r"""(?P<raw>(?:u8|[uUL])?R")|[A-Za-z_$][\w$]*|\.?\d(?:'?[\w.])*"""
    r"""|"(?:\\.|[^"\\\n])*+(?:"|\\?$)|'(?:\\.|[^'\\\n])*+(?:'|\\?$)"""
    r"""|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))""",
    re.DOTALL | re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^[ \t\v\f]*(?:#|%:)[ \t\v\f]*(\w+)\b(.*)$", re.MULTILINE)
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
    """The kernel source in a completion: its last fenced block that defines `hgemm`, or the bare text.

    None where nothing defines `hgemm`. An unclosed fence (a completion cut short) still counts. Lines end in `\\n`.
    """
    text = re.sub(r"\r\n?", "\n", completion)
    blocks = [body for body in _fenced(text) if defines_kernel(body)]
    if blocks:
        return blocks[-1].strip() + "\n"
    if "```" not in text and defines_kernel(text):
        return text.strip() + "\n"
    return None


def fenced(text: str, language: str = "") -> str:
    """The text as one fenced block of Markdown, by a fence that no line of it can close: `extract` finds it again."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _fenced(text: str) -> list[str]:
    """The fenced blocks of a Markdown text, in order.

    A block ends at a fence of its own character that is at least as long; if words stand there, the next one begins.
    """
    blocks: list[list[str]] = []
    opened = ""
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence and fence[1].startswith(opened):
            opened = "" if opened and not fence[2].strip() else fence[1]
            if opened:
                blocks.append([])
        elif opened:
            blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]


def defines_kernel(text: str) -> bool:
    """Whether the text defines the contract's entry point: `hgemm(…)` and a body, not a call or a declaration alone."""
    code = _DIRECTIVE.sub("", _TOKEN.sub(_without_text, _joined(text)))
    outside: list[str] = []
    depth = 0
    for piece in re.split(r"([()])", code):
        if piece == ")":
            depth = max(depth - 1, 0)
        if depth == 0:
            outside.append(piece)
        if piece == "(":
            depth += 1
    # Without what stood in parentheses a definition reads `hgemm() {`; attributes may stand between.
    return re.search(rf"\b{ENTRY}\s*\(\)[^;{{}},=]{{0,200}}\{{", "".join(outside)) is not None


def check(source: str, target: Target, headers: frozenset[str] = frozenset()) -> None:
    """Raises SourceRejected where the source is too long, includes a foreign header, or probes the host.

    `headers` are allowed beside the target's own.
    """
    size = len(source.encode())
    if size > MAX_BYTES:
        raise SourceRejected(f"the source has {size} bytes; at most {MAX_BYTES} are accepted")
    if "\0" in source:
        raise SourceRejected("the source contains a NUL byte")
    code = _TOKEN.sub(_without_comment, _joined(source))
    for name, pattern in _FORBIDDEN.items():
        if re.search(pattern, code):
            raise SourceRejected(f"{name} is not allowed in a kernel")
    for directive, argument in _DIRECTIVE.findall(code):
        if directive in _INCLUDES and not _allowed(argument.strip(), target, headers):
            known = ", ".join((*sorted(target.includes), *(f"{folder}*" for folder in target.include_folders)))
            raise SourceRejected(f"#{directive} {argument.strip()[:80]} is not allowed; allowed: {known}")
        if directive == "line" or directive.isdecimal():  # compilers quote the lines of the file it names
            raise SourceRejected("#line is not allowed in a kernel")


def _joined(source: str) -> str:
    """The source as C++ reads it: a line, be it a directive or a comment, may be continued on the next."""
    return re.sub(r"\\[ \t\v\f\r]*\n", "", source)


def _without_text(token: re.Match[str]) -> str:
    return " " if token["comment"] or token[0][0] in "\"'" else token[0]


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
