"""What hangs on what in the window's blocks: who must stay before whom, for how long, and how long the chains are."""

import numpy as np

from cudal2.sass import opcodes, order
from cudal2.sass.game.legality import Legality

LOADED = 32
"""Cycles that the result of a load from shared memory is guessed to take, and any other that only a barrier tells."""


class Chains:
    """Of the instructions of a window, by their numbers, as the compiler had them.

    `after[i, j]` says that i must stay before j, `latency[i, j]` how many cycles behind i j can issue at the earliest
    (0 where neither waits for the other), `way[i]` how long the longest chain from i to the end of its block is.
    """

    def __init__(self, legality: Legality) -> None:
        those, count = legality.instructions, len(legality.positions)
        unknown = legality.table.unknown
        self.after = np.zeros((count, count), bool)
        self.latency = np.zeros((count, count), np.int64)
        for one in range(count):
            for other in range(one + 1, int(legality.last[one]) + 1):
                if order.conflict(those[one], those[other]):
                    self.after[one, other] = True
                    waits = those[one].operation in unknown and those[one].defines & those[other].uses
                    self.latency[one, other] = LOADED if waits else 1
        slack = legality.pairs
        inside = slack.ahead & (slack.earlier < count) & (slack.later < count)
        for one, other, least in zip(slack.earlier[inside], slack.later[inside], slack.least[inside]):
            self.latency[one, other] = max(self.latency[one, other], least)
        self.way = np.zeros(count, np.int64)
        for one in reversed(range(count)):
            behind = self.latency[one] > 0
            longest = (self.latency[one] + self.way)[behind].max(initial=0)
            self.way[one] = max(longest, 8 if those[one].operation in opcodes.MATRIX else 1)

    def nearest(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each number how many places in front of it the last one stands that it must stay behind, and how far
        behind it the first that must stay behind it; the window's size where there is none."""
        count = len(self.way)
        distance = where[:count][None, :] - where[:count][:, None]
        near = np.where(self.after, distance, count)
        return near.min(axis=0, initial=count), near.min(axis=1, initial=count)
