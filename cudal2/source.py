"""From a completion's text to a source the worker may build.

The checks here give an early, readable reason and keep the compiler's inputs to the toolkit's own headers.
They are no defence by themselves: the jail is (see `worker/jail.py`).
"""

import re

from cudal2.target import Target

MAX_BYTES = 64 * 1024
"""Longest source accepted, in bytes."""

_FENCE = re.compile(r"```[ \t]*([\w+]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
# What C++ reads before it looks for directives: literals, words, numbers (1'000), comments.
_TOKEN = re.compile(
    r"""(?P<raw>(?:u8|[uUL])?R")|[A-Za-z_$][\w$]*|\.?\d(?:'?[\w.])*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"""|(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))""",
    re.DOTALL,
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

    None where nothing defines `hgemm`. An unclosed fence (a completion cut short) still counts.
    """
    blocks = [body for _, body in _FENCE.findall(completion) if defines_kernel(body)]
    if blocks:
        return blocks[-1].strip() + "\n"
    if "```" not in completion and defines_kernel(completion):
        return completion.strip() + "\n"
    return None


def defines_kernel(text: str) -> bool:
    """Whether the text names the contract's entry point as a C function."""
    return re.search(r"\bhgemm\s*\(", text) is not None


def check(source: str, target: Target, headers: frozenset[str] = frozenset()) -> None:
    """Raises SourceRejected where the source is too long, includes a foreign header, or probes the host.

    `headers` are allowed beside the target's own.
    """
    size = len(source.encode())
    if size > MAX_BYTES:
        raise SourceRejected(f"the source has {size} bytes; at most {MAX_BYTES} are accepted")
    if "\0" in source:
        raise SourceRejected("the source contains a NUL byte")
    joined = re.sub(r"\\[ \t\v\f\r]*\n", "", source)  # a directive may be continued over lines
    code = _TOKEN.sub(_without_comment, joined)
    for name, pattern in _FORBIDDEN.items():
        if re.search(pattern, code):
            raise SourceRejected(f"{name} is not allowed in a kernel")
    for directive, argument in _DIRECTIVE.findall(code):
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
