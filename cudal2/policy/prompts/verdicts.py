"""What a policy is told of its kernel before it writes again: in words, or as a token of the kernel LM."""

import math

from cudal2.completion import fenced
from cudal2.policy.prompts import profile
from cudal2.policy.prompts.template import named
from cudal2.records import Status, Verdict, plain
from cudal2.target import Target

LOG_CHARACTERS = 2000
"""Characters of a build's log that a policy sees after a turn."""
SLOWEST, FASTEST = -20, 8
"""The least and the most quarter octaves of speedup that a token tells: 1/32 and 4."""
TOKENS = (
    *(f"<|{status}|>" for status in Status),
    *(f"<|speed={level}|>" for level in range(SLOWEST, FASTEST + 1)),
)
"""The kernel LM's words for a verdict."""


def told(verdict: Verdict, target: Target) -> str:
    """The message to a policy about its last kernel, by `prompts/verdict.jinja`: what was wrong or how fast it was, and
    the build's log, truncated.

    It says what the judge found, but not which inputs it used. A candidate can influence the log and the reason. So the
    log cannot close its fence, the reason is one short line, and `sampling.tokenize` makes no special token of either.
    """
    news = verdict.log.strip() not in ("", verdict.reason.strip())
    log = fenced(_cut(verdict.log, LOG_CHARACTERS)) if news else ""
    what = {"verdict": verdict, "target": target, "reason": plain(verdict.reason), "log": log}
    return named("verdict").render(what, counted=profile.counted(verdict.counters)).strip()


def _cut(text: str, most: int) -> str:
    """The beginning, as compilers name the first error first."""
    return text if len(text) <= most else f"{text[:most]} …"


def token(verdict: Verdict) -> str:
    """The kernel LM's word for a verdict: its speedup by the quarter octave, or what was wrong."""
    if not verdict.timing:
        return f"<|{verdict.status}|>"
    level = round(4 * math.log2(verdict.timing.speedup))
    return f"<|speed={min(max(level, SLOWEST), FASTEST)}|>"
