"""Which moves are legal now: the answers of `dependence.Checker`, kept up to date from one move to the next.

The checker walks a kernel anew for each question. Here the rules are taken apart into what never changes under legal
moves (which pairs of instructions meet: `slack`), what a swap changes in its neighbourhood only (`waiting`), and two
numbers for each instruction, so that all swaps of a window are answered by a few array operations.
"""

from collections.abc import Iterable
from typing import Self

import msgspec
import numpy as np

from cudal2.sass import encoding, latencies, order, reuse
from cudal2.sass.blocks import graph
from cudal2.sass.encoding import Controls
from cudal2.sass.game.slack import NEVER, Slack
from cudal2.sass.game.waiting import BEHIND, NEAR, Waiting, shared
from cudal2.sass.game.window import Window
from cudal2.sass.listing import Instruction, Listing

LONGEST = 15
"""The most cycles of stall that the field holds."""


class Legality:
    """The present order of a listing's window, and what may be done with it.

    Places are counted from 0 through the window, `positions` says where in the listing each is; an instruction's number
    is the place where it stood at first. Raises Unlisted for an architecture without latencies.
    """

    def __init__(self, listing: Listing, window: Window) -> None:
        self.listing, self.window = listing, window
        self.table = latencies.table(listing)
        self.positions = window.positions
        count = len(self.positions)
        those = self.instructions
        spans = [(block, range(block.start, block.stop)) for block in window.blocks]
        self.block = [block for block, span in spans for _ in span]
        """The block of each place."""
        self.first = np.array([place - (self.positions[place] - b.start) for place, b in enumerate(self.block)])
        """The place where the block of each place begins, and in `last` the one where it ends."""
        self.last = np.array([place + b.stop - 1 - self.positions[place] for place, b in enumerate(self.block)])
        self.fixed = np.array([bool(order.pinned(one, None, self.table)) for one in those])
        """Of each number whether that instruction never moves, whatever stands before it."""
        self._conflicts: dict[tuple[int, int], bool] = {}
        self.order, self.where = np.arange(count), np.arange(count + 1)
        """The number of the instruction at each place, and the place of each number."""
        self.stalls = np.array([max(1, one.controls.stall) for one in those])
        parts, edges = graph(listing)
        self._waiting = Waiting(listing, window.blocks, self.table.unknown)
        rows = {one.origin: number for number, one in enumerate(those)}
        self._slack = Slack(listing.instructions, parts, edges, self._waiting.nodes, self.table, rows)
        self._local, self._reach = np.zeros(count, bool), np.zeros(count, np.int64)
        self._stale = set(range(count))
        """The places whose `_local` has to be found anew: done when it is asked for."""

    @property
    def instructions(self) -> list[Instruction]:
        """Those of the window in their present order."""
        return [self.listing.instructions[position] for position in self.positions]

    @property
    def pairs(self) -> Slack:
        """The pairs of instructions that a time lies between; for reading."""
        return self._slack

    def copy(self) -> Self:
        """Another that goes on from here by other moves; what never changes is shared."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._waiting, other._slack = self._waiting.copy(), self._slack.copy()
        for name in ("order", "where", "stalls", "_local", "_reach"):
            setattr(other, name, getattr(self, name).copy())
        other._stale = self._stale.copy()
        return other

    def swaps(self) -> np.ndarray:
        """Of each place whether the instruction there and the next may change places."""
        self._look(sorted(self._stale))
        return self._timely() & self._local

    def may_swap(self, place: int) -> bool:
        """The same of one place, without a look at the others."""
        if not self._timely()[place]:
            return False
        if place in self._stale:
            self._look([place])
        return bool(self._local[place])

    def _timely(self) -> np.ndarray:
        """Of each place whether, after a swap there, every result of known latency is still there in time."""
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
        """Of each place whether everything is in time still with one cycle of stall less there.

        What goes through a whole short block, once or again, is given no benefit of the doubt.
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
        """The instruction there and the next change places; what was kept around them for reuse is kept no more."""
        block, position = self.block[place], self.positions[place]
        listing, _ = reuse.cleared(self.listing, block.start, position, block.stop)
        self.listing = listing.swapped(position)
        first, second = self.order[place], self.order[place + 1]
        self._slack.time[first] += self.stalls[second]
        self._slack.time[second] -= self.stalls[first]
        self.order[place], self.order[place + 1] = second, first
        self.where[first], self.where[second] = place + 1, place
        self._renew(place, position)

    def control(self, place: int, controls: Controls) -> None:
        """The instruction at that place has these scheduling fields now."""
        position = self.positions[place]
        before = self.listing.instructions[position].controls
        self.listing = self.listing.controlled(position, controls)
        if before.stall != controls.stall:
            self.stalls[self.order[place]] = max(1, controls.stall)
            self._slack.measure(self.listing.instructions)
            self._renew(place, position)

    def may_keep(self, place: int) -> bool:
        """Whether the operands that the compiler kept there, and that are kept no more, may be kept again."""
        position, block = self.positions[place], self.block[place]
        one = self.listing.instructions[position]
        if not one.compiled.reuse:
            return False
        controls = msgspec.structs.replace(one.controls, reuse=one.compiled.reuse)
        if encoding.mismatch(controls):
            return False
        return not reuse.stale(self.listing, position, block.stop, msgspec.structs.replace(one, controls=controls))

    def _renew(self, place: int, position: int) -> None:
        """After a change at that place what is awaited behind it is found anew, and answered what depends on it."""
        those, block = self.listing.instructions, self.block[place]
        if shared(*those[position : position + 2]):
            self._slack.find(those, block)
        end = self._waiting.renew(those, block, position)
        if end is None:
            self._waiting = self._waiting.anew(self.listing)
            self._stale.update(range(len(self.positions)))
        else:
            reached = end - position if end > position + NEAR + 2 else 0
            # What a swap would do further up may be decided by the order here, and near by a barrier's very cycle.
            places, walked = np.arange(len(self.first)), self._reach > np.array(self.positions)
            above = (self.first == self.first[place]) & (places < place)
            decided = (above & (self._reach >= position)) | (self._reach == BEHIND)
            near = walked & (abs(places - place) <= NEAR + 1)
            self._stale.update(range(place - 1, place + 4), range(place, place + reached))
            self._stale.update(np.flatnonzero(decided | near).tolist())

    def _look(self, places: Iterable[int]) -> None:
        """Finds anew what depends on an instruction's neighbourhood."""
        those = self.listing.instructions
        for place in places:
            if 0 <= place < len(self.positions) - 1:
                self._local[place], self._reach[place] = False, 0
                if self.last[place] > place and self._free(place):
                    where = self.block[place], self.positions[place]
                    self._local[place], self._reach[place] = self._waiting.may_swap(those, *where)
            self._stale.discard(place)

    def _free(self, place: int) -> bool:
        """Whether neither of the two is pinned and no register or memory orders them."""
        if self.fixed[self.order[place]] or self.fixed[self.order[place + 1]]:
            return False
        position = self.positions[place]
        first, second = self.listing.instructions[position : position + 2]
        if place > self.first[place] and order.dummy(self.listing.instructions[position - 1]):
            return False
        if first.origin > second.origin:  # the compiler had them so
            return True
        key = (first.origin, second.origin)
        if key not in self._conflicts:
            self._conflicts[key] = bool(order.conflict(first, second))
        return not self._conflicts[key]
