"""List scheduling with the simulator as its cost: what the longest chain of results hangs on goes first.

After J. Fisher, Trace scheduling (1981): of the instructions that could issue now, the one with the longest way to the
block's end. A stretch of the best schedule is put into that order as far as legal moves lead there; priorities are
shaken, so that stretches come out differently, and the simulator says which of some is worth a measurement.
"""

import numpy as np

from cudal2.sass.game.play import Play
from cudal2.sass.game.task import Task, score, toward

STRETCH = (4, 20)
"""How many instructions are put in order at once, from and to."""
SHAKEN = 0.3
"""By what share of itself a priority is changed at random, at most."""


def search(task: Task) -> None:
    """Stretches of the best schedule, put in order; moves of fields between, which no order decides."""
    best, speedup = task.start, 1.0
    while True:
        tried = [_ordered(task, best) for _ in range(max(2, task.config.surrogate))]
        play = max(tried, key=lambda one: task.simulate(one.listing))
        if (found := score(task.ask(play.edit()))) > speedup:
            best, speedup = play, found


def _ordered(task: Task, state: Play) -> Play:
    """A copy with one stretch in the order of its shaken priorities, or with some moves where that changes nothing."""
    rng, known = task.rng, state.legality
    begin = rng.randrange(len(state))
    end = min(begin + rng.randint(*STRETCH), int(known.last[begin]) + 1)
    numbers = known.order[begin:end]
    ways = task.chains.way[numbers] * [1 + rng.uniform(-SHAKEN, SHAKEN) for _ in numbers]
    play, origins = state.copy(), [one.origin for one in state.instructions[begin:end]]
    toward(play, [origins[place] for place in scheduled(ways, task.chains.latency[np.ix_(numbers, numbers)])])
    return play if (play.legality.order != known.order).any() else task.neighbour(state)


def scheduled(ways: np.ndarray, latency: np.ndarray) -> list[int]:
    """The order in which a machine of one issue a cycle would take instructions, those of the longest ways first.

    `latency[i, j]` is how many cycles j must issue behind i, 0 where it need not.
    """
    left, ready, found, now = list(range(len(ways))), np.zeros(len(ways), np.int64), list[int](), 0
    while left:
        free = [one for one in left if not latency[left, one].any()]
        could = [one for one in free if ready[one] <= now] or [min(free, key=lambda one: (ready[one], one))]
        chosen = max(could, key=lambda one: (ways[one], -one))
        now = max(now, int(ready[chosen]))
        ready = np.maximum(ready, np.where(latency[chosen] > 0, now + latency[chosen], 0))
        now += 1
        left.remove(chosen)
        found.append(chosen)
    return found
