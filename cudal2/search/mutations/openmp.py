"""OpenMP: how iterations are shared among threads, and which loops are vectorised."""

import random
import re

from cudal2.search.text import another, change_one

_SCHEDULE = re.compile(r"(?<= )schedule\([^)]*\)")
_SCHEDULES = [f"schedule({how})" for how in ("static", "static, 1", "dynamic", "dynamic, 2", "guided")]
_SHARED = re.compile(r"(#pragma omp (?:parallel )?for)( collapse\(2\))?")
_INNER = re.compile(r"^ *for \(int (\w+) = 0; [^;]*; \+\+\1\) (?!for|if|\{)", re.MULTILINE)


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    if "cudaError_t" in source:
        return None
    return change_one(
        source,
        [
            (_SCHEDULE, lambda match: another(_SCHEDULES, match[0], rng)),
            (_SHARED, lambda match: match[1] if match[2] else f"{match[1]} collapse(2)"),
            (_SHARED, lambda match: _scheduled(source, match, rng)),
            (_INNER, lambda match: f"#pragma omp simd\n{match[0]}"),
        ],
        rng,
    )


def _scheduled(source: str, match: re.Match[str], rng: random.Random) -> str | None:
    """The same pragma with a schedule; None where it has one."""
    rest = source[match.end() :].partition("\n")[0]
    return None if "schedule" in rest else f"{match[0]} {rng.choice(_SCHEDULES)}"
