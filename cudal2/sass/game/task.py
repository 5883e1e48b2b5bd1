"""What a search is given: the start, the judge and the budget; and steps that all searches use."""

import math
import random
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from cudal2.config import SassSearchConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass.game.chains import Chains
from cudal2.sass.game.moves import Kind, Move
from cudal2.sass.game.play import Play
from cudal2.sass.listing import Listing

WEIGHTS = {Kind.SHORTER: 2, Kind.LONGER: 1, Kind.YIELD: 1, Kind.REUSE: 1}
"""The weight by which a kind of move is drawn; kinds that change the order are not named and have 3."""


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
