"""Which shapes training may see, and which are kept from it to tell how well what was learnt carries over."""

from functools import cache

from cudal2.problem import Accumulate, Layout, Problem, grid, sample
from cudal2.records import digest

HELD_OUT_SHARE = 0.1
"""Share of all shapes that training never sees."""

REPORTED = (100, 2026)
"""Count and seed of the `sample` of the grid that results are reported on, which is kept from training too."""


def held_out(problem: Problem) -> bool:
    """Whether a shape is kept from training: the same about one in ten for every layout and accumulator."""
    return int(digest("held out", problem.mnk)[:8], 16) < HELD_OUT_SHARE * 2**32


def unseen(problem: Problem) -> bool:
    """Whether training may not see a shape: it is held out, or one of those that results are reported on."""
    return held_out(problem) or problem.mnk in _reported()


@cache
def _reported() -> frozenset[str]:
    return frozenset(problem.mnk for problem in sample(*REPORTED))


def training(layout: Layout = "tn", accumulate: Accumulate = "f32") -> list[Problem]:
    """The shapes of the grid that training may see, smallest work first: some 800."""
    return [problem for problem in grid(layout, accumulate) if not unseen(problem)]
