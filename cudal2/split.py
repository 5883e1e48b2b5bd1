"""Which shapes training may see, and which are kept from it to tell how well what was learnt carries over."""

from collections.abc import Iterable
from functools import cache

from cudal2 import llm
from cudal2.problem import Accumulate, Layout, Problem, grid, off_lattice, sample
from cudal2.records import digest

HELD_OUT_SHARE = 0.1
"""Share of all shapes that training never sees."""

REPORTED = (100, 2026)
"""Count and seed of the `sample` of the grid that results are reported on, which is kept from training too; and of the
shapes off the lattice."""

KEPT_APART = ("gemma-3", "mistral", "starcoder2")
"""Families of models of which nothing is learnt or tuned: six of 17 models, dense ones and a mixture, with biases and
without. No layer of theirs is on the grid, in another family, among the shapes of the corpus, or in `data/settings`
(the layers of Qwen2.5 7B, Phi-4, gpt-oss and DeepSeek-V3 are, since kernels for decoding were made for them)."""


def kept_apart(problem: Problem) -> bool:
    """Whether a shape is for measuring alone: a layer of a model that is kept apart, for any number of rows, or one of
    those shapes off the lattice that results are reported on. Neither settings nor training may come from it."""
    return (problem.n, problem.k) in _layers_kept_apart() or problem.mnk in _off_lattice()


def open_families() -> tuple[str, ...]:
    """The families of models that may be learnt from."""
    return tuple(family for family in llm.families() if family not in KEPT_APART)


def refuse(problems: Iterable[Problem], what: str) -> None:
    """Raises ValueError where some of these problems are kept apart; `what` says who may not see them."""
    if apart := [problem.mnk for problem in problems if kept_apart(problem)]:
        raise ValueError(
            f"{what} may not see {', '.join(apart[:3])}{' and others' if apart[3:] else ''}: they are kept apart to "
            "measure how well what was learnt carries over; shapes=llm-open has the layers of the other models"
        )


def held_out(problem: Problem) -> bool:
    """Whether a shape is kept from training: the same about one in ten for every layout and accumulator."""
    return int(digest("held out", problem.mnk)[:8], 16) < HELD_OUT_SHARE * 2**32


def unseen(problem: Problem) -> bool:
    """Whether training may not see a shape: it is held out, kept apart, or among those that results are reported on."""
    return held_out(problem) or problem.mnk in _reported() or kept_apart(problem)


@cache
def _layers_kept_apart() -> frozenset[tuple[int, int]]:
    apart = [name for name, model in llm.models().items() if model.family in KEPT_APART]
    return frozenset((layer.n, layer.k) for name in apart for layer in llm.layers(name).values())


@cache
def _off_lattice() -> frozenset[str]:
    return frozenset(problem.mnk for problem in off_lattice(*REPORTED))


@cache
def _reported() -> frozenset[str]:
    return frozenset(problem.mnk for problem in sample(*REPORTED))


def training(layout: Layout = "tn", accumulate: Accumulate = "f32") -> list[Problem]:
    """The shapes of the grid that training may see, smallest work first: some 800."""
    return [problem for problem in grid(layout, accumulate) if not unseen(problem)]
