"""How often each operation stands in a cubin: what a kernel is made of, at a glance."""

import re
from collections import Counter
from collections.abc import Iterable

from cudal2.worker.cuda.compile import sass
from cudal2.worker.sandbox import jail

_OPERATION = re.compile(rb"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]{0,15})\b")


def operations(cubin: bytes, kind: jail.Kind, seconds: float) -> dict[str, int]:
    """How many instructions of each operation, without its modifiers, all functions of a cubin have together: {"HMMA":
    128, "LDSM": 64, …}, the most frequent first.

    They are counted where they stand, not as they are executed; NOPs, which fill up the last line, are left out. Raises
    what `sass.read` does.
    """
    with sass.listing(cubin, kind, seconds) as lines:
        return counted(lines)


def counted(lines: Iterable[bytes]) -> dict[str, int]:
    """What the lines of a listing say."""
    found = Counter(hit.group(1).decode() for line in lines if (hit := _OPERATION.match(line)))
    del found["NOP"]
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
