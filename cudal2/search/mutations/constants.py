"""Changes a compile-time constant to a near value: tile sizes, stages, groups of tiles, copies in flight."""

import random
import re

from cudal2.search.text import change_one

# constexpr int STAGES = 4, Int<128>, wait<1>(), wait_group.read 2
_NUMBER = re.compile(
    r"(?<=\b[A-Z] = )\d+(?=[,;])|(?<=[A-Z0-9_]{2} = )\d+(?=[,;])|(?<=\bInt<)\d+(?=>)|(?<=[a-z]<)\d(?=>\()"
    r"|(?<=wait_group\.read )\d|(?<=wait_group )\d"
)


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    return change_one(source, [(_NUMBER, lambda match: str(rng.choice(near(int(match[0])))))], rng)


def near(value: int) -> list[int]:
    """The values worth trying instead: one step less, one and two steps more (of 8 for multiples of 8 from 16 on,
    else 1), and half, one and a half and two times the value."""
    step = 1 if value < 16 or value % 8 else 8
    others = {value - step, value + step, value + 2 * step, value * 2, value // 2, value * 3 // 2}
    return sorted(other for other in others if other >= 0 and other != value)
