"""Evolution: a few good schedules, of which children are made by moves and by taking over another one's order.

(μ + λ) selection with tournaments (T. Bäck, Evolutionary Algorithms in Theory and Practice, 1996).
"""

from cudal2.sass.game.play import Play
from cudal2.sass.game.task import Task, score, toward

PARENTS = 8
"""Schedules that live."""
CROSSED = 0.2
"""Share of the children that take over a stretch of a second parent's order."""
STRETCH = 12
"""The instructions of such a stretch."""
TOURNAMENT = 2


def search(task: Task) -> None:
    """Children one at a time; each takes the place of the worst parent that it is faster than."""
    alive: list[tuple[float, Play]] = [(1.0, task.start)]
    rng = task.rng

    def parent() -> Play:
        return max((rng.choice(alive) for _ in range(TOURNAMENT)), key=lambda one: one[0])[1]

    while True:
        child = task.neighbour(parent())
        if len(alive) > 1 and rng.random() < CROSSED:
            other = parent().instructions
            begin = rng.randrange(len(other))
            toward(child, [one.origin for one in other[begin : begin + STRETCH]])
        found = score(task.ask(child.edit()))
        if found and (len(alive) < PARENTS or found > alive[-1][0]):
            alive = sorted([*alive, (found, child)], key=lambda one: -one[0])[:PARENTS]
