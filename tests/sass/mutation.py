"""Plants faults into a schedule to test the checker (mutation testing), and says which of them are harmless.

There are five kinds: a wait for a barrier is removed; a stall is lowered to one cycle where the next instruction uses
the result; that instruction is put before its definition; a write barrier is removed; an operand is kept that is
overwritten before it is read again. Some of the first four change nothing that matters. The following rules for that
were written before any score was looked at. They are decided along the paths through the code, independently of the
checker's own analysis (`flow`):

- a wait is needless if on every path to it the barrier was waited for since it was set; or if nothing touches the
  result or source that the barrier protects before every path waits for it again;
- a write barrier is needless if nothing touches the result before a barrier is waited for that a later
  instruction of the same pipe has set, as these end in order;
- a use under the opposite guard of its definition never meets it.
"""

from collections.abc import Iterator
from functools import cached_property

import msgspec

from cudal2.records import Control, Shift
from cudal2.sass import latencies, opcodes, reuse
from cudal2.sass.blocks import Block, Node, graph
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import NO_BARRIER, mismatch

WAIT, STALL, USE, BARRIER = "wait removed", "stall lowered", "use above definition", "write barrier cleared"
KEPT = "old operand kept"
KINDS = (WAIT, STALL, USE, BARRIER, KEPT)

Place = tuple[int, int | None]
"""A position; and, inside a function that is called, the block to return to, else None."""


class Mutant(msgspec.Struct, frozen=True):
    """A fault at `position`, of a kind in KINDS, as the moves of an edit; for a wait also its `barrier`."""

    kind: str
    position: int
    moves: tuple[Shift | Control, ...]
    barrier: int = NO_BARRIER


class Mutants:
    """The possible faults of one listing. Raises Unlisted for an architecture without latencies."""

    def __init__(self, listing: Listing) -> None:
        self._those, self._unknown = listing.instructions, latencies.table(listing).unknown
        self._order = opcodes.order(listing.architecture)
        self._parts, self._edges = graph(listing)

    def __iter__(self) -> Iterator[Mutant]:
        yield from self._moved_or_cleared()
        for block in self._parts:
            yield from self._kept(block)

    def _moved_or_cleared(self) -> Iterator[Mutant]:
        starts = {block.start for block in self._parts}
        for p, one in enumerate(self._those):
            controls = one.controls
            for barrier in controls.waits:
                yield Mutant(WAIT, p, (Control(p, "wait", controls.wait & ~(1 << barrier)),), barrier)
            if controls.write_barrier != NO_BARRIER and one.defines:
                yield Mutant(BARRIER, p, (Control(p, "write_barrier", NO_BARRIER),))
            if p + 1 in starts or p + 1 == len(self._those) or not one.defines & self._those[p + 1].uses:
                continue
            yield Mutant(USE, p, (Shift(p, p + 1),))
            if one.operation not in self._unknown and controls.stall > 1:
                yield Mutant(STALL, p, (Control(p, "stall", 1),))

    def _kept(self, block: Block) -> Iterator[Mutant]:
        """Where the next reader of a slot reads the same register, which has been defined in between."""
        for slot in range(2):
            last: dict[bool, int] = {}
            for position in range(block.start, block.stop):
                one = self._those[position]
                if one.operation not in opcodes.KEEPING or not reuse.operand(one, slot):
                    continue
                kind = one.operation in opcodes.MATRIX
                before, last[kind] = last.get(kind, position), position
                first, between = self._those[before], self._those[before:position]
                register = reuse.operand(one, slot)[0]
                again = register in reuse.operand(first, slot) and any(register in other.defines for other in between)
                controls = msgspec.structs.replace(first.controls, reuse=first.controls.reuse | 1 << slot)
                if again and before < position and not mismatch(controls):
                    yield Mutant(KEPT, before, (Control(before, "reuse", controls.reuse),))

    def needless(self, mutant: Mutant) -> bool:
        """Whether the fault changes nothing that matters, by the rules above."""
        if mutant.kind == WAIT:
            return self._needless_wait(mutant.position, mutant.barrier)
        if mutant.kind == BARRIER:
            return self._needless_barrier(mutant.position)
        if mutant.kind == KEPT:
            return False
        first, second = (one.guard for one in self._those[mutant.position : mutant.position + 2])
        return bool(first and second) and {first, second} == {"@" + second.lstrip("@!"), "@!" + second.lstrip("@!")}

    @cached_property
    def _after(self) -> dict[Place, list[Place]]:
        """The successors of each place that control reaches."""
        found, seen = dict[Place, list[Place]](), set[Node]()
        todo: list[Node] = [(0, None)]
        while todo:
            number, back = node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            block, following = self._parts[number], self._edges(node)
            for position in range(block.start, block.stop - 1):
                found[position, back] = [(position + 1, back)]
            found[block.stop - 1, back] = [(self._parts[next_].start, there) for next_, there in following]
            todo += following
        return found

    @cached_property
    def _before(self) -> dict[Place, list[Place]]:
        found: dict[Place, list[Place]] = {place: [] for place in self._after}
        for place, following in self._after.items():
            for other in following:
                found[other].append(place)
        return found

    def _needless_wait(self, position: int, barrier: int) -> bool:
        setters, silent = list[Instruction](), list[Instruction]()
        for one in self._back(position, barrier):
            if barrier in one.controls.sets:
                setters.append(one)
            elif one.operation in self._unknown and one.controls.write_barrier == NO_BARRIER:
                silent.append(one)  # what sets the barrier may tell of it, too
        told = [one for one in setters if one.controls.write_barrier == barrier]
        earlier = frozenset[str]().union(*(self._order.told.get(one.operation, frozenset()) for one in told))
        told += [one for one in silent if one.operation in earlier]
        written = frozenset[str]().union(*(one.defines for one in told))
        read = {name for one in (*setters, *told) for name in one.uses if self._order.read_late(one, name)}
        todo, seen = [place for place in self._after if place[0] == position], set[Place]()
        while setters and todo:
            place = todo.pop()
            one = self._those[place[0]]
            if place in seen or (place[0] != position and barrier in one.controls.waits):
                continue
            seen.add(place)
            if one.operation in opcodes.SYNCHRONIZING or written & (one.uses | one.defines) or read & one.defines:
                return False
            todo += self._after[place]
        return True

    def _back(self, position: int, barrier: int) -> Iterator[Instruction]:
        """The instructions before a position, along each path back to another wait for the barrier."""
        todo, seen = [before for place in self._before if place[0] == position for before in self._before[place]], set()
        while todo:
            place = todo.pop()
            if place in seen:
                continue
            seen.add(place)
            yield self._those[place[0]]
            if barrier not in self._those[place[0]].controls.waits:
                todo += self._before[place]

    def _needless_barrier(self, position: int) -> bool:
        setter = self._those[position]
        todo = [(after, 0) for place in self._after if place[0] == position for after in self._after[place]]
        seen = set[tuple[Place, int]]()
        while todo:
            place, mask = todo.pop()
            one = self._those[place[0]]
            if (place, mask) in seen or one.controls.wait & mask:
                continue
            seen.add((place, mask))
            if setter.defines & (one.uses | one.defines):
                return False
            later = setter.operation in self._order.told.get(one.operation, frozenset())
            if later and one.controls.write_barrier != NO_BARRIER:
                mask |= 1 << one.controls.write_barrier
            todo += [(after, mask) for after in self._after[place]]
        return True
