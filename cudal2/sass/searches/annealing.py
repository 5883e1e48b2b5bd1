"""Simulated annealing (S. Kirkpatrick et al., Optimization by simulated annealing, 1983) over log-speedups.

A slower schedule is accepted with a probability that falls with its loss and with the number of measurements made.
"""

import math

from cudal2.sass.game.task import Task, score

HOT, COLD = 0.01, 0.0005
"""The temperature at the beginning and at the end: the loss, as a share of time, accepted with probability 1/e."""


def search(task: Task) -> None:
    """One cooling from HOT to COLD over the budget; at half of the budget it returns to the best schedule."""
    state, speedup = task.start, 1.0
    best, most = state, speedup
    turned = False
    while True:
        if task.spent > 0.5 and not turned:
            state, speedup, turned = best, most, True
        play = task.neighbour(state)
        found = score(task.ask(play.edit()))
        temperature = HOT * (COLD / HOT) ** task.spent
        gain = math.log(found / speedup) if found else -math.inf
        if gain >= 0 or task.rng.random() < math.exp(gain / temperature):
            state, speedup = play, found
        if found > most:
            best, most = play, found
