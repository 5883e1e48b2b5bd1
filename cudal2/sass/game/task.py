"""What a search is given: the start, the judge, the budget, the dependence graph; and steps that all searches use.

Every measurement is written to a journal, a file of JSON lines, so that a killed search can continue. Given the same
answers a search asks the same questions. So with the answers in its journal it comes back to its state.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from cudal2.config import SassSearchConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass import latencies, opcodes
from cudal2.sass.game.legality import Legality
from cudal2.sass.game.play import Kind, Move, Play
from cudal2.sass.listing import Listing

LOADED = 32
"""The assumed latency, in cycles, of a load from shared memory and of all other operations of unknown latency."""
WEIGHTS = {Kind.SHORTER: 2, Kind.LONGER: 1, Kind.YIELD: 1, Kind.REUSE: 1}
"""The weight by which a kind of move is drawn; kinds that change the order are not named and have 3."""
PATIENCE = 20
"""A search may ask so many times its budget for edits measured before; then it is taken to have converged."""
RETIRED = {"search.fit": 0}
"""Keys that older journals name, at the values at which they changed nothing."""


class Chains:
    """Dependences between the instructions of a window, by their numbers, in the compiler's order.

    `after[i, j]`: i must stay before j. `latency[i, j]`: the least cycles from the issue of i to that of j (0 where
    neither waits for the other). `way[i]`: the length of the longest path from i to the end of its block, in cycles.
    """

    def __init__(self, legality: Legality) -> None:
        instructions, count = legality.instructions, len(legality.positions)
        unknown = legality.table.unknown
        self.after = np.zeros((count, count), bool)
        self.latency = np.zeros((count, count), np.int64)
        for first in range(count):
            for second in range(first + 1, int(legality.last[first]) + 1):
                if latencies.conflict(instructions[first], instructions[second]):
                    self.after[first, second] = True
                    waits = (
                        instructions[first].operation in unknown
                        and instructions[first].defines & instructions[second].uses
                    )
                    self.latency[first, second] = LOADED if waits else 1
        slack = legality.pairs
        inside = slack.ahead & (slack.earlier < count) & (slack.later < count)
        for first, second, least in zip(slack.earlier[inside], slack.later[inside], slack.least[inside]):
            self.latency[first, second] = max(self.latency[first, second], least)
        self.way = np.zeros(count, np.int64)
        for place in reversed(range(count)):
            behind = self.latency[place] > 0
            longest = (self.latency[place] + self.way)[behind].max(initial=0)
            self.way[place] = max(longest, 8 if instructions[place].operation in opcodes.MATRIX else 1)

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
        plays = [self._near(state) for _ in range(max(1, self.config.surrogate))]
        return plays[0] if len(plays) == 1 else max(plays, key=lambda play: self.simulate(play.listing))

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
    places = {instruction.origin: place for place, instruction in enumerate(play.instructions)}
    goal = min((places[origin] for origin in wanted), default=0)
    last = play.legality.last[goal]
    for origin in wanted:
        place = next(p for p, instruction in enumerate(play.instructions) if instruction.origin == origin)
        if place > last:
            continue
        while place > goal and play.rise(place):
            place -= 1
        goal = max(goal, place + 1) if place == goal else goal
        if goal > last:
            return


class Line(msgspec.Struct, frozen=True):
    """One measurement and the seconds that it took."""

    edit: Edit
    measured: Measured
    seconds: float = 0.0


class Journal:
    """The measurements of one search, which `head` identifies: its kernel, its configuration, its judge.

    Raises ValueError where the file belongs to another search.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path, self.known = path, dict[Edit, Line]()
        head = msgspec.json.decode(msgspec.json.encode(head))
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        former = msgspec.json.decode(whole[0]) if whole else head
        former = {key: value for key, value in former.items() if RETIRED.get(key) != value or key in head}
        if former != head:
            keys = ", ".join(key for key in {**head, **former} if head.get(key) != former.get(key))
            raise ValueError(f"{path} is of another search (other {keys}); choose another run=, or remove the file")
        for line in whole[1:]:
            entry = msgspec.json.decode(line, type=Line)
            self.known[entry.edit] = entry
        if len(whole) < len(lines) or not whole:  # new, or torn by a kill
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".tmp")
            fresh.write_bytes(b"".join(whole or [msgspec.json.encode(head) + b"\n"]))
            fresh.replace(path)

    def add(self, line: Line) -> None:
        """Appends a measurement, so that a kill does not lose it."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.known[line.edit] = line


class Budget:
    """Measures for a search: each edit once, and `limit` edits in all; then it raises Spent.

    The unedited kernel counts as exactly as fast as itself. `measure` is called with an edit and the greatest lower
    bound so far, `report` with each edit that counts and whether it is `new` in the journal.
    """

    def __init__(
        self,
        journal: Journal,
        measure: Callable[[Edit, float], Measured],
        limit: int,
        report: Callable[["Budget", Line, bool], None] = lambda budget, line, new: None,
    ) -> None:
        self._journal, self._measure, self.limit, self._report = journal, measure, limit, report
        self.seen: dict[Edit, Line] = {}
        self.best: Line | None = None
        """The correct edit with the greatest lower bound of its speedup."""
        self._asked = 0

    def __call__(self, edit: Edit) -> Measured:
        """The measurement of an edit, old or new. Raises Spent."""
        self._asked += 1
        if self._asked > PATIENCE * self.limit:
            raise Spent
        if not edit.moves:
            return Measured(Status.OK, 1.0, 1.0, 1.0)
        if edit in self.seen:
            return self.seen[edit].measured
        if len(self.seen) >= self.limit:
            raise Spent
        line = self._journal.known.get(edit)
        new = line is None
        if line is None:
            started = time.perf_counter()
            measured = self._measure(edit, max(1.0, self.best.measured.low) if self.best else 1.0)
            line = Line(edit, measured, time.perf_counter() - started)
            self._journal.add(line)
        self.seen[edit] = line
        if line.measured.status is Status.OK and (self.best is None or line.measured.low > self.best.measured.low):
            self.best = line
        self._report(self, line, new)
        return line.measured
