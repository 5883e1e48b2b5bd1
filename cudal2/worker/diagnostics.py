"""What a compiler's, assembler's or linker's log says first: the error that a reader wants, not the first line.

Compilers name the place before the error ("In function …", "In file included from …"), linkers the object; what follows
the first error is often its echo.
"""

import re

# What kind of message a line is. GCC: `file:1:2: error: …`; nvcc: `file(1): error: …`; tools: `ptxas fatal   : …`;
# the assembler: `file.s:1: Error: …`.
_KIND = re.compile(
    r"(?:^|[:)\]] |; |^[\w+./-]+ )(?P<kind>(?:fatal |catastrophic |internal (?:compiler )?|command-line )?error|Error"
    r"|fatal|warning|Warning|note|info|Info|[Rr]emark)\b(?: ?#[\w-]+)?\s*:",
)
_LINKER = re.compile(
    r"undefined (?:reference|symbol)|multiple definition of|cannot find -l|relocation .* (?:against|out of)"
)
_ECHO = re.compile(r"^(?:collect2|make)\b|^\d+ errors? detected|^Error limit reached|^compilation terminated")
_CONTEXT = re.compile(
    r"^\S*: (?:In|At) [\w ]+(?:'.*')?.*:$|^In file included from |^\s+from |required (?:from|by)|in function [`'].*:$"
    r"|^\s*\d* \||^\s*[\^~]+\s*$|^Remark:|^\s+detected during|^\s+\[.*\]$"
)


def first_error(log: str) -> str:
    """The first error of a log, in one line; the first line that is no mere context where nothing is called an error.

    "" only where the log is blank.
    """
    lines = [line.strip("\r") for line in log.splitlines() if line.strip() and not _ECHO.match(line)]
    for line in lines:
        if "error" in kind(line) or kind(line) in ("Error", "fatal") or (not kind(line) and _LINKER.search(line)):
            return line.strip()
    told = [line for line in lines if not _CONTEXT.search(line) and not kind(line)]
    return next(iter(told or lines or log.split("\n")), "").strip()


def kind(line: str) -> str:
    """`error`, `warning`, `note` …, as the line calls itself; "" where it does not."""
    found = _KIND.search(line)
    return found["kind"] if found else ""
