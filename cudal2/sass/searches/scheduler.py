"""List scheduling with the simulator as its cost: instructions on the critical path go first.

After J. Fisher, Trace scheduling (1981): of the instructions that could issue now, the one with the longest path to the
block's end is next. A stretch of the best schedule is put into that order, as far as legal moves can. Priorities are
perturbed at random, so that the results differ, and the simulator chooses which of them to measure.
"""

import numpy as np

from cudal2.sass.game.play import Play
from cudal2.sass.game.task import Task, score, toward

STRETCH = (4, 20)
"""The least and the greatest length of a stretch, in instructions."""
SHAKEN = 0.3
"""The largest random change of a priority, as a share of it."""


def search(task: Task) -> None:
    """Orders stretches of the best schedule; between them it also tries moves of scheduling fields."""
    best, speedup = task.start, 1.0
    while True:
        tried = [_ordered(task, best) for _ in range(max(2, task.config.surrogate))]
        play = max(tried, key=lambda play: task.simulate(play.listing))
        if (reached := score(task.ask(play.edit()))) > speedup:
            best, speedup = play, reached


def _ordered(task: Task, state: Play) -> Play:
    """A copy with one stretch in the order of its perturbed priorities; random moves where that changes nothing."""
    rng, known = task.rng, state.legality
    begin = rng.randrange(len(state))
    end = min(begin + rng.randint(*STRETCH), int(known.last[begin]) + 1)
    numbers = known.order[begin:end]
    ways = task.chains.way[numbers] * [1 + rng.uniform(-SHAKEN, SHAKEN) for _ in numbers]
    play, origins = state.copy(), [instruction.origin for instruction in state.instructions[begin:end]]
    toward(play, [origins[place] for place in scheduled(ways, task.chains.latency[np.ix_(numbers, numbers)])])
    return play if (play.legality.order != known.order).any() else task.neighbour(state)


def scheduled(ways: np.ndarray, latency: np.ndarray) -> list[int]:
    """The order in which a machine with one issue per cycle takes instructions, the longest paths first.

    `latency[i, j]` is the least number of cycles from the issue of i to that of j, 0 where there is none.
    """
    left, ready, order, now = list(range(len(ways))), np.zeros(len(ways), np.int64), list[int](), 0
    while left:
        free = [place for place in left if not latency[left, place].any()]
        could = [place for place in free if ready[place] <= now] or [min(free, key=lambda place: (ready[place], place))]
        chosen = max(could, key=lambda place: (ways[place], -place))
        now = max(now, int(ready[chosen]))
        ready = np.maximum(ready, np.where(latency[chosen] > 0, now + latency[chosen], 0))
        now += 1
        left.remove(chosen)
        order.append(chosen)
    return order
