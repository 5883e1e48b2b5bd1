"""Which moves are legal now: the same answers as `dependence.Checker`, updated from one move to the next.

The checker walks a kernel anew for each question. Here its rules are divided into what never changes under legal
moves (which pairs of instructions meet: `slack`) and what a swap changes in its neighbourhood only (`waiting`). So a
few array operations answer for all swaps of a window.
"""

from collections.abc import Iterable
from typing import Self

import numpy as np

from cudal2.sass import latencies, reuse
from cudal2.sass.blocks import Window, graph
from cudal2.sass.game.slack import NEVER, Slack
from cudal2.sass.game.waiting import BEHIND, NEAR, Waiting, shared
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import Controls

LONGEST = 15
"""The largest stall that the field holds, in cycles."""


class Legality:
    """The present order of a listing's window, and its legal moves.

    Places are counted from 0 through the window, and `positions` has the position of each in the listing. An
    instruction's number is the place where it was at first. Raises Unlisted for an architecture without latencies.
    """

    def __init__(self, listing: Listing, window: Window) -> None:
        self.listing, self.window = listing, window
        self.table = latencies.table(listing)
        self.positions = window.positions
        count = len(self.positions)
        instructions = self.instructions
        spans = [(block, range(block.start, block.stop)) for block in window.blocks]
        self.block = [block for block, span in spans for _ in span]
        """The block of each place."""
        self.first = np.array([place - (self.positions[place] - b.start) for place, b in enumerate(self.block)])
        """For each place the first place of its block; `last` has the last one."""
        self.last = np.array([place + b.stop - 1 - self.positions[place] for place, b in enumerate(self.block)])
        self.fixed = np.array([bool(latencies.pinned(instruction, None, self.table)) for instruction in instructions])
        """For each number whether that instruction never moves, whatever is before it."""
        self._conflicts: dict[tuple[int, int], bool] = {}
        self.order, self.where = np.arange(count), np.arange(count + 1)
        """The number of the instruction at each place, and the place of each number."""
        self.stalls = np.array([max(1, instruction.controls.stall) for instruction in instructions])
        parts, edges = graph(listing)
        self._waiting = Waiting(listing, window.blocks, self.table.unknown)
        rows = {instruction.origin: number for number, instruction in enumerate(instructions)}
        self._slack = Slack(listing.instructions, parts, edges, self._waiting.nodes, self.table, rows)
        self._local, self._reach = np.zeros(count, bool), np.zeros(count, np.int64)
        self._stale = set(range(count))
        """The places whose `_local` is out of date; it is renewed when it is needed."""

    @property
    def instructions(self) -> list[Instruction]:
        """The window's instructions in their present order."""
        return [self.listing.instructions[position] for position in self.positions]

    @property
    def pairs(self) -> Slack:
        """The pairs of instructions with a least distance in cycles; do not change it."""
        return self._slack

    def copy(self) -> Self:
        """A copy for other moves from here; what never changes is shared."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._waiting, other._slack = self._waiting.copy(), self._slack.copy()
        for name in ("order", "where", "stalls", "_local", "_reach"):
            setattr(other, name, getattr(self, name).copy())
        other._stale = self._stale.copy()
        return other

    def swaps(self) -> np.ndarray:
        """For each place whether the instruction there and the next may change places: bool [places]."""
        self._look(sorted(self._stale))
        return self._timely() & self._local

    def may_swap(self, place: int) -> bool:
        """Whether the instruction at one place and the next may change places."""
        if not self._timely()[place]:
            return False
        if place in self._stale:
            self._look([place])
        return bool(self._local[place])

    def _timely(self) -> np.ndarray:
        """For each place whether, after a swap there, every result of known latency is still in time."""
        slack, count = self._slack.slack(), len(self.positions)
        earlier, later = self._slack.earlier, self._slack.later
        inside = (earlier < count) & (later < count)
        beside = inside & (self.where[earlier] + 1 == self.where[later])
        other = ~beside & (earlier != later)
        before, after = np.full((2, count + 1), NEVER)
        np.minimum.at(before, later[other], slack[other])
        np.minimum.at(after, earlier[other], slack[other])
        around = np.full(count, NEVER)
        looped = beside & ~self._slack.ahead
        np.minimum.at(around, self.where[earlier[looped]], slack[looped])
        first, second = self.order[:-1], self.order[1:]
        timely = np.zeros(count, bool)
        timely[:-1] = (before[second] >= self.stalls[first]) & (after[first] >= self.stalls[second])
        timely[:-1] &= around[:-1] >= self.stalls[first] + self.stalls[second]
        return timely

    def shorter(self) -> np.ndarray:
        """For each place whether everything is still in time with one cycle of stall less there: bool [places].

        Where a result passes through a whole short block, perhaps repeatedly, the answer is no in case of doubt.
        """
        slack, count = self._slack.slack(), len(self.positions)
        earlier, later, ahead, age = self._slack.earlier, self._slack.later, self._slack.ahead, self._slack.age
        start, stop = self.where[earlier], self.where[later]
        banned = np.zeros(count + 1, np.int64)

        def ban(which: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
            np.add.at(banned, begin[which], 1)
            np.add.at(banned, end[which], -1)

        first, last = np.append(self.first, 0), np.append(self.last, -1)
        ban(ahead & (slack < 1), start, stop)
        ban(~ahead & (slack < 1) & (earlier < count), start, last[start] + 1)
        ban(~ahead & (slack < 1) & (later < count), first[stop], stop)
        both = ~ahead & (earlier < count) & (later < count) & (start < stop) & (slack < 2)
        ban(both & (first[start] == first[stop]), start, stop)
        for place in np.unique(self.first):
            length = self.stalls[self.order[place : self.last[place] + 1]].sum()
            if (~ahead & (age >= length) & (slack < 2 + age // length)).any():
                banned[place] += 1
                banned[self.last[place] + 1] -= 1
        return (np.cumsum(banned)[:-1] == 0) & (self.stalls[self.order] > 1)

    def swap(self, place: int) -> None:
        """Swaps the instruction at that place and the next, and sets the `reuse` bits around them anew."""
        block, position = self.block[place], self.positions[place]
        self.listing, _ = reuse.swapped(self.listing, block.start, position, block.stop)
        first, second = self.order[place], self.order[place + 1]
        self._slack.time[first] += self.stalls[second]
        self._slack.time[second] -= self.stalls[first]
        self.order[place], self.order[place + 1] = second, first
        self.where[first], self.where[second] = place + 1, place
        self._renew(place, position)

    def control(self, place: int, controls: Controls) -> None:
        """Sets the scheduling fields of the instruction at that place."""
        position = self.positions[place]
        before = self.listing.instructions[position].controls
        self.listing = self.listing.controlled(position, controls)
        if before.stall != controls.stall:
            self.stalls[self.order[place]] = max(1, controls.stall)
            self._slack.measure(self.listing.instructions)
            self._renew(place, position)

    def keepable(self, place: int) -> int:
        """The `reuse` bits that an instruction without any may have there."""
        return reuse.keepable(self.listing, self.positions[place], self.block[place].stop)

    def _renew(self, place: int, position: int) -> None:
        """After a change at that place, updates the states behind it and marks answers that depend on it as stale."""
        instructions, block = self.listing.instructions, self.block[place]
        if shared(*instructions[position : position + 2]):
            self._slack.find(instructions, block)
        end = self._waiting.renew(instructions, block, position)
        if end is None:
            self._waiting = self._waiting.anew(self.listing)
            self._stale.update(range(len(self.positions)))
        else:
            reached = end - position if end > position + NEAR + 2 else 0
            # The order here may decide a swap further up, and a barrier's exact cycle a swap near by.
            places, walked = np.arange(len(self.first)), self._reach > np.array(self.positions)
            above = (self.first == self.first[place]) & (places < place)
            decided = (above & (self._reach >= position)) | (self._reach == BEHIND)
            near = walked & (abs(places - place) <= NEAR + 1)
            self._stale.update(range(place - 1, place + 4), range(place, place + reached))
            self._stale.update(np.flatnonzero(decided | near).tolist())

    def _look(self, places: Iterable[int]) -> None:
        """Renews the answers that depend on the neighbourhood of these places."""
        instructions = self.listing.instructions
        for place in places:
            if 0 <= place < len(self.positions) - 1:
                self._local[place], self._reach[place] = False, 0
                if self.last[place] > place and self._free(place):
                    where = self.block[place], self.positions[place]
                    self._local[place], self._reach[place] = self._waiting.may_swap(instructions, *where)
            self._stale.discard(place)

    def _free(self, place: int) -> bool:
        """Whether neither of the two is pinned, and neither registers nor memory order them."""
        if self.fixed[self.order[place]] or self.fixed[self.order[place + 1]]:
            return False
        position = self.positions[place]
        first, second = self.listing.instructions[position : position + 2]
        if place > self.first[place] and latencies.dummy(self.listing.instructions[position - 1]):
            return False
        if first.origin > second.origin:  # a swap restores the compiler's order
            return True
        key = (first.origin, second.origin)
        if key not in self._conflicts:
            self._conflicts[key] = bool(latencies.conflict(first, second))
        return not self._conflicts[key]
