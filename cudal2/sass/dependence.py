"""May two neighbours change places, may a scheduling field change, does a whole schedule keep every rule?

Rules come in three kinds: what keeps its order whatever the fields say (`order`), what must be waited for, by cycles
or by a barrier (`flow` with the figures of `latencies`), and which operands are kept (`reuse`). An instruction moves
with its scheduling fields, so a swap is legal where the schedule after it keeps every rule that it kept before.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cudal2.records import Control, Shift
from cudal2.sass import encoding, flow, latencies, order, reuse
from cudal2.sass.blocks import Block, graph
from cudal2.sass.encoding import Controls
from cudal2.sass.listing import Instruction, Listing

TOUCHED = "barriers and waits stay as the compiler set them"
FOLLOWED = 64
"""How many blocks are followed behind one whose end a change has altered."""


class Violation(msgspec.Struct, frozen=True):
    """A rule that a schedule breaks: `rule` names it, `position` is where, `earlier` the position of the other one."""

    rule: str
    position: int
    earlier: int
    why: str


class Left(NamedTuple):
    """What is under way where a block ends, that was entered as `node` says."""

    node: flow.Node
    state: flow.State


def violations(listing: Listing, compiled: "Checker | None" = None) -> tuple[Violation, ...]:
    """Every rule that the schedule breaks; () for what the compiler wrote. Raises Unlisted for another architecture.

    The order of instructions is compared with the compiler's (their `origin`), block by block. With the checker of the
    `compiled` schedule it is also blamed for what is closer than there and closer than the compiler ever left any two
    such, well known or not: as strict as a swap is judged.
    """
    checker = Checker(listing)
    broken = compiled.worse if compiled else checker.broken
    places = {one.origin: place for place, one in enumerate(listing.instructions)}
    found = list[Violation]()
    for position, met in flow.meetings(listing, checker.table.unknown, (checker.blocks, checker._begins)):
        if why := broken(met):
            found.append(Violation(met.kind, position, places[met.earlier.origin], why))
    for block in checker.blocks:
        fixed = _fixed(listing, block, checker.table)
        found += _inverted(listing, block, fixed)
        for position in range(block.start, block.stop):
            one = listing.instructions[position]
            if register := reuse.stale(listing, position, block.stop):
                found.append(Violation("reuse", position, position, f"{register} is kept, and overwritten"))
            if why := encoding.mismatch(one.controls) or _touched(one, checker.table):
                found.append(Violation("fields", position, position, why))
            if not block.start <= one.origin < block.stop:
                found.append(Violation("order", position, position, "it has left its block"))
            if one.origin != position and one.origin in fixed:
                found.append(Violation("order", position, position, f"it has moved: {fixed[one.origin]}"))
    return tuple(dict.fromkeys(found))


def may_swap(listing: Listing, position: int) -> str:
    """Why the instruction there and the next may not change places; empty where they may.

    For many questions about one listing keep a `Checker`.
    """
    return Checker(listing).may_swap(position)


class Checker:
    """Answers for one listing; keeps what is under way at every place."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.table = latencies.table(listing)
        self.blocks, self._begins = flow.begins(listing, self.table.unknown)
        self._edges = graph(listing)[1]
        self._states: dict[flow.Node, list[flow.State]] = {}
        self._present: dict[tuple[str, int, int, str], int] | None = None

    def broken(self, met: flow.Meeting, strictly: bool = False) -> str:
        """What a meeting breaks, empty where it is late enough; `strictly` also where nothing tells what is enough."""
        what = f"{met.later.operation} meets {met.register} of {met.earlier.operation} ({met.earlier.origin})"
        if met.cycles is None:
            return f"{what}: no barrier that tells it to be over was waited for"
        needed = self.table.needed(met.kind, *latencies.names(met), strictly)
        if needed is None:
            return f"{what}: nothing is known of how late is enough" if strictly else ""
        return f"{what} after {met.cycles} of {needed} cycles" if met.cycles < needed else ""

    def worse(self, met: flow.Meeting) -> str:
        """What a meeting breaks that this listing keeps: what stands in it as close, or closer, is no change."""
        why = self.broken(met, strictly=True)
        if not why or met.cycles is None:
            return why
        if self._present is None:
            self._present = {}
            for _, old in flow.meetings(self.listing, self.table.unknown):
                if old.cycles is not None and self.broken(old, strictly=True):
                    self._present[_pair(old)] = min(old.cycles, self._present.get(_pair(old), old.cycles))
        return why if met.cycles < self._present.get(_pair(met), flow.HORIZON) else ""

    def may_swap(self, position: int) -> str:
        """Why the instruction there and the next may not change places; empty where they may."""
        block = self.block(position)
        if block is None or position + 1 >= block.stop:
            return "no two instructions of one block stand there"
        those = self.listing.instructions
        for place in (position, position + 1):
            if why := order.pinned(those[place], those[place - 1] if place > block.start else None, self.table):
                return why
        first, second = those[position], those[position + 1]
        # What the compiler had the other way round may always go back.
        if first.origin < second.origin and (why := order.conflict(first, second)):
            return why
        return self._timing(self._swapped(position)[0], block, position)

    def may_control(self, position: int, controls: Controls) -> str:
        """Why an instruction's scheduling fields may not be set so; empty where they may. Only stall, yield and reuse
        may change: what waits for which barrier stays."""
        block = self.block(position)
        if block is None:
            return "no instruction stands there"
        changed = msgspec.structs.replace(self.listing.instructions[position], controls=controls)
        if why := _touched(changed, self.table) or encoding.mismatch(controls):
            return why
        if self.table.operations.isdisjoint({self.listing.instructions[position].operation}):
            return "nothing is known of this operation"
        return self._timing(self.listing.controlled(position, controls), block, position, settle=False)

    def swap(self, position: int) -> tuple[Listing, tuple[Shift | Control, ...]]:
        """The listing after a swap and the moves of the edit that makes it; operands kept around it are so no more."""
        swapped, places = self._swapped(position)
        return swapped, (*(Control(place, "reuse", 0) for place in places), Shift(position, position + 1))

    def block(self, position: int) -> Block | None:
        """The block that an instruction belongs to."""
        return next((block for block in self.blocks if block.start <= position < block.stop), None)

    def _swapped(self, position: int) -> tuple[Listing, tuple[int, ...]]:
        block = self.block(position)
        assert block is not None
        listing, places = reuse.cleared(self.listing, block.start, position, block.stop)
        return listing.swapped(position), places

    def _timing(self, listing: Listing, block: Block, position: int, settle: bool = True) -> str:
        """What a changed listing breaks from `position` to the block's end, or could break behind it."""
        for found in self.within(listing, block, position, settle):
            if why := self._behind(found) if isinstance(found, Left) else self.worse(found):
                return why
        return ""

    def within(
        self, listing: Listing, block: Block, position: int, settle: bool = True
    ) -> Iterator[flow.Meeting | Left]:
        """What meets in a listing that is changed from `position` on, up to the block's end, and what is left there.

        Where it may `settle`, a walk ends, and leaves nothing, as soon as the same is under way as without the change.
        """
        for node, begin in self._begins.items():
            if self.blocks[node[0]] != block:
                continue
            states = self._along(node, begin)
            state = states[position - block.start].copy()
            for place in range(position, block.stop):
                if settle and place > position + 1 and state == states[place - block.start]:
                    break
                yield from flow.step(state, listing.instructions[place], self.table.unknown)
            else:
                yield Left(node, flow.left(state))

    def _behind(self, left: Left) -> str:
        """What breaks in the blocks after one, whose end is now left so."""
        todo = [(following, left.state) for following in self._edges(left.node)]
        for _ in range(FOLLOWED):
            if not todo:
                return ""
            node, state = todo.pop()
            begin = self._begins[node]
            state = flow.joined(begin, state)
            if state == flow.joined(begin, begin):  # nothing is under way that was not before, or for longer
                continue
            block = self.blocks[node[0]]
            for one in self.listing.instructions[block.start : block.stop]:
                for met in flow.step(state, one, self.table.unknown):
                    if why := self.worse(met):
                        return why
            todo += [(following, flow.left(state)) for following in self._edges(node)]
        return "too much behind the block depends on it"

    def _along(self, node: flow.Node, begin: flow.State) -> list[flow.State]:
        """What is under way before each instruction of a block, and at its end."""
        if node not in self._states:
            block, states = self.blocks[node[0]], [begin]
            for one in self.listing.instructions[block.start : block.stop]:
                state = states[-1].copy()
                flow.step(state, one, self.table.unknown)
                states.append(state)
            self._states[node] = states
        return self._states[node]


def _pair(met: flow.Meeting) -> tuple[str, int, int, str]:
    return met.kind, met.earlier.origin, met.later.origin, met.register


def _touched(one: Instruction, table: latencies.Table) -> str:
    """What the scheduling fields have that the compiler did not set and no move may; a reader of bytes cannot tell.

    ptxas gives no stall of 0 to what moves at all, and to some of what never does (a MEMBAR, a DEPBAR, jumps)
    always 4 to 6 cycles, for which no register is a reason.
    """
    now, then = one.controls, one.compiled
    if (now.write_barrier, now.read_barrier, now.wait) != (then.write_barrier, then.read_barrier, then.wait):
        return TOUCHED
    if now.stall < then.stall:
        if order.pinned(one, None, table):
            return f"{one.operation} is pinned, and stalls no shorter than the compiler had it"
        if not now.stall:
            return "it stalls a cycle at least"
    return "an operand is kept that was not" if now.reuse & ~then.reuse else ""


def _fixed(listing: Listing, block: Block, table: latencies.Table) -> dict[int, str]:
    """Why those of a block that never move do not, by their origin; who stood before whom is what the compiler had."""
    inside = [one for one in listing.instructions[block.start : block.stop] if block.start <= one.origin < block.stop]
    before: Instruction | None = None
    found = dict[int, str]()
    for one in sorted(inside, key=lambda one: one.origin):
        if why := order.pinned(one, before, table):
            found[one.origin] = why
        before = one
    return found


def _inverted(listing: Listing, block: Block, fixed: dict[int, str]) -> list[Violation]:
    """Pairs of a block that are not in the compiler's order and had to be.

    Two that change places around a pinned one leave it where it was, and have passed it all the same.
    """
    found, those = [], listing.instructions
    latest = max((one.origin for one in those[block.start : block.start + 1]), default=0)
    for place in range(block.start + 1, block.stop):
        if those[place].origin < latest:
            for before in range(block.start, place):
                first, second = those[place], those[before]
                if second.origin > first.origin:
                    passed = next((one for one in (first, second) if one.origin in fixed), None)
                    if why := order.conflict(first, second) or (passed and f"nothing passes {passed.operation}"):
                        found.append(Violation("order", place, before, why))
        latest = max(latest, those[place].origin)
    return found
