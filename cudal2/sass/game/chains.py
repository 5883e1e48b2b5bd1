"""The dependence graph of the window's blocks: which instruction must stay before which, and the critical paths."""

import numpy as np

from cudal2.sass import opcodes, order
from cudal2.sass.game.legality import Legality

LOADED = 32
"""The assumed latency, in cycles, of a load from shared memory and of all other operations of unknown latency."""


class Chains:
    """Dependences between the instructions of a window, by their numbers, in the compiler's order.

    `after[i, j]`: i must stay before j. `latency[i, j]`: the least cycles from the issue of i to that of j (0 where
    neither waits for the other). `way[i]`: the length of the longest path from i to the end of its block, in cycles.
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
        """For each instruction the distance, in places, to the nearest one before it that it depends on, and to the
        nearest one behind that depends on it; the window's size where there is none."""
        count = len(self.way)
        distance = where[:count][None, :] - where[:count][:, None]
        near = np.where(self.after, distance, count)
        return near.min(axis=0, initial=count), near.min(axis=1, initial=count)
