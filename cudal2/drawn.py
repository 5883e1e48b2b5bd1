"""Problems to learn from without end: so many that nothing can be learnt by heart, and none that is kept apart."""

import math
import random
from collections.abc import Sequence

from cudal2 import llm
from cudal2.problem import Accumulate, Layout, Problem
from cudal2.split import open_families, unseen

MOST_ROWS = 8192
SMALLEST, LARGEST = 64, 16384
"""N and K, where they are no layer's."""
TRIES = 100
"""Draws for each problem that is asked for, after which there are not so many."""


def drawn(
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
    rng, found = random.Random(f"drawn {seed}"), dict[Problem, None]()
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
            found[problem] = None
        if len(found) == count:
            return list(found)
    raise ValueError(f"there are hardly {count} such problems of at most {flop:g} FLOP; ask for fewer or larger ones")


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return int(math.exp(rng.uniform(math.log(least), math.log(most + 1))))
