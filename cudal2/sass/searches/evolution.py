"""Evolution: children of a few good schedules, made by moves and by taking over part of another one's order.

(μ + λ) selection with tournaments (T. Bäck, Evolutionary Algorithms in Theory and Practice, 1996).
"""

from cudal2.sass.game.play import Play
from cudal2.sass.game.task import Task, score, toward

PARENTS = 8
"""The size of the population."""
CROSSED = 0.2
"""The share of children that take over a stretch of a second parent's order."""
STRETCH = 12
"""The length of such a stretch, in instructions."""
TOURNAMENT = 2


def search(task: Task) -> None:
    """One child at a time; if it is faster than the worst parent, it replaces it."""
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
