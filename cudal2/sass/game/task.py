"""What a search is given: the start, the judge, the budget, the dependence graph; and steps that all searches use."""

import math
import random
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from cudal2.config import SassSearchConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass import opcodes, order
from cudal2.sass.game.legality import Legality
from cudal2.sass.game.moves import Kind, Move
from cudal2.sass.game.play import Play
from cudal2.sass.listing import Listing

LOADED = 32
"""The assumed latency, in cycles, of a load from shared memory and of all other operations of unknown latency."""
WEIGHTS = {Kind.SHORTER: 2, Kind.LONGER: 1, Kind.YIELD: 1, Kind.REUSE: 1}
"""The weight by which a kind of move is drawn; kinds that change the order are not named and have 3."""


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


class Spent(Exception):
    """The budget of measurements is spent, so the search is over."""


class Task:
    """What a search works with. `ask` measures an edit and raises Spent at the end of the budget; `simulate` estimates
    the speedup of a listing at no cost to the budget. All random numbers come from `rng`, so that a search asks the
    same questions if it is given the same answers."""

    def __init__(
        self,
        start: Play,
        config: SassSearchConfig,
        seed: int,
        ask: Callable[[Edit], Measured],
        simulate: Callable[[Listing], float],
    ) -> None:
        self.start, self.config, self.rng = start, config, random.Random(seed)
        self.simulate = simulate
        self._ask, self._asked = ask, 0

    @cached_property
    def chains(self) -> Chains:
        """The dependence graph of the window."""
        return Chains(self.start.legality)

    @property
    def spent(self) -> float:
        """The share of the budget that is spent."""
        return min(1.0, self._asked / self.config.measurements)

    def ask(self, edit: Edit) -> Measured:
        """The measurement of an edit. Raises Spent."""
        self._asked += 1
        return self._ask(edit)

    def step(self, play: Play) -> None:
        """A random legal move: first its kind is drawn, then where. Raises Spent where there is none at all."""
        mask = play.mask()
        kinds = [kind for kind in Kind if mask[:, kind].any()]
        if not kinds:
            raise Spent
        kind = self.rng.choices(kinds, [WEIGHTS.get(kind, 3) for kind in kinds])[0]
        play.apply(Move(self.rng.choice(np.flatnonzero(mask[:, kind]).tolist()), kind))

    def neighbour(self, state: Play) -> Play:
        """A state a few random moves away, seldom many; of `surrogate` such states the best by the simulator."""
        found = [self._near(state) for _ in range(max(1, self.config.surrogate))]
        return found[0] if len(found) == 1 else max(found, key=lambda play: self.simulate(play.listing))

    def _near(self, state: Play) -> Play:
        play = state.copy()
        for _ in range(1 + int(-math.log(1 - self.rng.random()) / math.log(2))):
            self.step(play)
        return play


def score(measured: Measured) -> float:
    """The speedup; 0 for a schedule that is not right."""
    return measured.speedup if measured.status is Status.OK else 0.0


def toward(play: Play, wanted: Sequence[int]) -> None:
    """Moves the instructions of these origins into that order, one behind the other, as far as legal moves can.

    Those of another block than the first are left where they are.
    """
    places = {one.origin: place for place, one in enumerate(play.instructions)}
    goal = min((places[origin] for origin in wanted), default=0)
    last = play.legality.last[goal]
    for origin in wanted:
        place = next(p for p, one in enumerate(play.instructions) if one.origin == origin)
        if place > last:
            continue
        while place > goal and play.rise(place):
            place -= 1
        goal = max(goal, place + 1) if place == goal else goal
        if goal > last:
            return
