"""Cache hints: how loads and stores are cached, how much is fetched at once and how far ahead."""

import random
import re

from cudal2.search.text import another, change_one

_CHOICES = [
    (re.compile(r"\b__ld(?:cg|ca|cs|cv|lu)(?=\()"), ["__ldcg", "__ldca", "__ldcs", "__ldlu"]),
    (re.compile(r"\b__st(?:cg|cs|wt|wb)(?=\()"), ["__stcg", "__stcs", "__stwt", "__stwb"]),
    # In turn: of a tensor map, of an asynchronous copy, of a single load.
    (re.compile(r"(?<=L2_PROMOTION_)(?:NONE|L2_\d+B)"), ["NONE", "L2_64B", "L2_128B", "L2_256B"]),
    (re.compile(r"(?<=cp\.async\.cg\.shared\.global)(?:\.L2::\d+B)?(?= )"), ["", ".L2::64B", ".L2::128B", ".L2::256B"]),
    (
        re.compile(r"(?<=ld\.global)(?:\.L1::\w+)?(?:\.L2::\d+B)?(?=\.(?:v\d\.)?b)"),
        ["", ".L1::no_allocate", ".L1::evict_last", ".L1::no_allocate.L2::128B", ".L1::no_allocate.L2::256B"],
    ),
]
_STORE = re.compile(r"\*(\((?:uint4|uint2|uint32_t|float4|float2)\*\)\([^;=]*\)) = ([^;]*);")
_PREFETCH = re.compile(r"__builtin_prefetch\(([^;]*?)(?:, 0, \d)?\);")
_AHEAD = re.compile(r"(?<=\+ )\d+(?= \*)")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    return change_one(
        source,
        [
            *((pattern, lambda match, values=values: another(values, match[0], rng)) for pattern, values in _CHOICES),
            (_STORE, lambda match: f"{rng.choice(('__stcs', '__stcg'))}({match[1]}, {match[2]});"),
            (_PREFETCH, lambda match: f"__builtin_prefetch({match[1]}, 0, {rng.randrange(4)});"),
            (_PREFETCH, lambda match: _AHEAD.sub(lambda ahead: _distance(int(ahead[0]), rng), match[0])),
        ],
        rng,
    )


def _distance(now: int, rng: random.Random) -> str:
    return str(max(1, rng.choice((now // 2, now * 2, now * 4))))
