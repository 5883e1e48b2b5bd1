"""The instruction mix of a cubin: how often each operation occurs."""

import re
from collections import Counter
from collections.abc import Iterable

from cudal2.worker.cuda.compile import sass
from cudal2.worker.sandbox import jail

_OPERATION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]{0,15})\b")


def operations(cubin: bytes, kind: jail.Kind, seconds: float) -> dict[str, int]:
    """The number of instructions by operation, without modifiers, in all functions of a cubin: {"HMMA": 128, "LDSM":
    64, …}, the most frequent first.

    This is a static count, not one of executions; NOPs, which fill up the last line, are left out. Raises as
    `sass.read` does.
    """
    with sass.listing(cubin, kind, seconds) as lines:
        return counted(lines)


def counted(lines: Iterable[bytes]) -> dict[str, int]:
    """The counts in the lines of a disassembly."""
    found = Counter(hit.group(1).decode() for line in lines if (hit := _OPERATION.match(line)))
    del found["NOP"]
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
