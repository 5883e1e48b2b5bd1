"""Registers per thread: `setmaxnreg`, and `__launch_bounds__` with the number of blocks per multiprocessor."""

import random
import re

from cudal2.search.text import another, change_one

_SHARE = re.compile(r"(?<=c\.sync\.aligned\.u32 )\d+(?=;)")
_BOUNDS = re.compile(r"__launch_bounds__\(([^(),]+)(?:, ([^(),]+))?\)")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    changes = [(_SHARE, lambda match: _near(int(match[0]), rng)), (_BOUNDS, lambda match: _bounds(match, rng))]
    return change_one(source, changes, rng)


def _near(count: int, rng: random.Random) -> str:
    """A multiple of 8 from 24 to 256, as setmaxnreg wants it."""
    return str(min(256, max(24, count + 8 * rng.choice((-3, -2, -1, 1, 2, 3)))))


def _bounds(match: re.Match[str], rng: random.Random) -> str:
    """The launch bounds with one block more or fewer, with the same, or with none stated."""
    now = int(match[2]) if (match[2] or "").isdecimal() else 1
    blocks = another(["", *(str(count) for count in (now - 1, now, now + 1) if count)], match[2] or "", rng)
    return f"__launch_bounds__({match[1]}{', ' * bool(blocks)}{blocks})"
