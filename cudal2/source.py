"""From a completion's text to a source the worker may build.

The checks here give an early, readable reason and keep the compiler's inputs to the toolkit's own headers.
They are no defence by themselves: the jail is (see `worker/jail.py`).
"""

import re

from cudal2.target import Target

MAX_BYTES = 64 * 1024
"""Longest source accepted, in bytes."""

_FENCE = re.compile(r"```[ \t]*([\w+]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_INCLUDE = re.compile(r"^\s*(?:#|%:|\?\?=)\s*(?:include|include_next|import|embed)\b\s*(.*)$", re.MULTILINE)
_FORBIDDEN = {
    "__has_include": r"__has_include",
    ".incbin": r"\.incbin|\.include",
    "#pragma GCC pch/system_header tricks": r"pragma\s+GCC\s+(?:pch_preprocess|system_header|dependency)",
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


def check(source: str, target: Target) -> None:
    """Raises SourceRejected where the source is too long, includes a foreign header, or probes the host."""
    size = len(source.encode())
    if size > MAX_BYTES:
        raise SourceRejected(f"the source has {size} bytes; at most {MAX_BYTES} are accepted")
    if "\0" in source:
        raise SourceRejected("the source contains a NUL byte")
    joined = re.sub(r"\\\s*\n", "", source)  # a directive may be continued over lines
    for argument in _INCLUDE.findall(joined):
        header = re.match(r"<([^>]+)>", argument) or re.match(r'"([^"]+)"', argument)
        if header is None or header.group(1) not in target.includes:
            allowed = ", ".join(sorted(target.includes))
            raise SourceRejected(f"#include {argument.strip()[:80]} is not allowed; allowed: {allowed}")
    for name, pattern in _FORBIDDEN.items():
        if re.search(pattern, joined):
            raise SourceRejected(f"{name} is not allowed in a kernel")
