"""The L2's eviction policy for loads and stores of the copy engine (TMA).

The constants are those of CUTLASS (include/cute/arch/copy_sm90_desc.hpp, TMA::CacheHintSm90).
"""

import random
import re

from cudal2.search.text import another, change_one

FIRST, LAST, NORMAL = "0x12F0000000000000ull", "0x14F0000000000000ull", "0x1000000000000000ull"
# A load by the copy engine: its instruction, its operands, and what they are.
_LOAD = re.compile(
    r'("cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global[\w.:]*)"(\s*" \[%0\], \[%1[^;]*);"'
    r'(\s*::)([^;]*)(?= : "memory")'
)
_POLICY = re.compile("|".join((FIRST, LAST, NORMAL)))
_PRIORITY = re.compile(r"(?<=L2::evict_)(?:first|last|normal|unchanged)(?=\.b64)")
_FRACTION = re.compile(r"(?<=policy, )[01]\.\d+(?=;)")


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    return change_one(
        source,
        [
            (_LOAD, lambda match: _hinted(match, rng.choice((FIRST, LAST)))),
            (_POLICY, lambda match: another([FIRST, LAST, NORMAL], match[0], rng)),
            (_PRIORITY, lambda match: another(["first", "last", "normal"], match[0], rng)),
            (_FRACTION, lambda match: another(["1.0", "0.5", "0.25"], match[0], rng)),
        ],
        rng,
    )


def _hinted(match: re.Match[str], policy: str) -> str | None:
    """The same load with a policy as its last operand; None where it has one."""
    instruction, operands, colons, inputs = match.groups()
    if "cache_hint" in instruction:
        return None
    number = len(re.findall(r'"\w"\(', inputs))
    return f'{instruction}.L2::cache_hint"{operands}, %{number};"{colons}{inputs}, "l"({policy})'
