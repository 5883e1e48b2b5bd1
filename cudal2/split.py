"""Which shapes training may see, and which are kept from it to tell how well what was learnt carries over; and problems
to learn from without end (`draw`): so many that nothing can be learnt by heart, and none that is kept apart.
"""

import math
import random
from collections.abc import Iterable, Sequence
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
without. No layer of theirs is on the grid, in another family, among the shapes of the corpus, or in `data/settings`,
as many of the others' are."""


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


MOST_ROWS = 8192
SMALLEST, LARGEST = 64, 16384
"""N and K, where they are no layer's."""
TRIES = 100
"""Draws for each problem that is asked for, after which there are not so many."""


def draw(
    count: int,
    seed: int,
    flop: float,
    rows: int = 1,
    layouts: Sequence[Layout] = ("tn",),
    dtypes: Sequence[str] = ("fp16",),
    epilogues: Sequence[str] = ("none",),
    accumulate: Accumulate = "f32",
) -> list[Problem]:
    """`count` problems that training may see, each of at most `flop` FLOP and once.

    Every second draw has N and K of a layer of a model, if one is small enough, and its bias, where `epilogues` have
    it. The other draws have multiples of 8, log-uniformly. M is a multiple of `rows`, log-uniformly up to MOST_ROWS or
    what `flop` leaves; layout, type and epilogue are any of those given. The problems come in the order in which they
    are drawn: a greater count adds to them. Raises ValueError where there are not so many.
    """
    rng, problems = random.Random(f"drawn {seed}"), dict[Problem, None]()
    layers = [layer for name in llm.names(open_families()) if 2 * (layer := llm.find(name)[1]).n * layer.k <= flop]
    for _ in range(TRIES * count):
        n, k = (8 * _log_uniform(rng, SMALLEST // 8, LARGEST // 8) for _ in range(2))
        epilogue = rng.choice(epilogues)
        if layers and rng.random() < 0.5:
            layer = rng.choice(layers)
            n, k, own = layer.n, layer.k, "bias" if layer.bias else "none"
            epilogue = own if own in epilogues else epilogue
        most = min(MOST_ROWS, flop / (2 * n * k)) // rows
        m = rows * _log_uniform(rng, 1, max(int(most), 1))
        problem = Problem(m, n, k, rng.choice(layouts), accumulate, rng.choice(dtypes), epilogue)
        if problem.flop <= flop and not unseen(problem):
            problems[problem] = None
        if len(problems) == count:
            return list(problems)
    raise ValueError(f"there are hardly {count} such problems of at most {flop:g} FLOP; ask for fewer or larger ones")


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return int(math.exp(rng.uniform(math.log(least), math.log(most + 1))))
