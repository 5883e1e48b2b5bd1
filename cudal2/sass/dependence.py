"""The checker: may two neighbours change places, may a scheduling field change, does a schedule keep every rule?

There are three kinds of rules: instructions that must keep their order whatever the fields say (`latencies`); results
that must be waited for, by cycles or by a barrier (`flow`, with the figures of `latencies`); and operands kept for
reuse (`reuse`). An instruction moves together with its scheduling fields. So a swap is legal if the schedule after it
keeps every rule that the schedule before kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cudal2.records import Control, Shift
from cudal2.sass import flow, latencies, reuse
from cudal2.sass.blocks import Block, graph
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import Controls, mismatch

TOUCHED = "barriers and waits stay as the compiler set them"
FOLLOWED = 64
"""A change that alters the state at a block's end is followed through so many blocks at most."""


class Violation(msgspec.Struct, frozen=True):
    """A broken rule: its name, the `position` of the instruction that breaks it, and of the `earlier` one."""

    rule: str
    position: int
    earlier: int
    why: str


class Left(NamedTuple):
    """The state at the end of a block that was entered as `node` says."""

    node: flow.Node
    state: flow.State


def violations(listing: Listing, compiled: "Checker | None" = None) -> tuple[Violation, ...]:
    """Every broken rule of a schedule; () for a compiler's schedule. Raises Unlisted for an unknown architecture.

    The order of instructions is compared with the compiler's (their `origin`), block by block. With the checker of the
    `compiled` schedule the check is as strict as for a swap: two instructions must not be closer than there and closer
    than the compiler ever put such a pair, even if that least distance was seen in few kernels only.
    """
    checker = Checker(listing)
    broken = compiled.worse if compiled else checker.broken
    places = {instruction.origin: place for place, instruction in enumerate(listing.instructions)}
    breaches = list[Violation]()
    for position, met in flow.meetings(listing, checker.table.unknown, (checker.blocks, checker._begins)):
        if why := broken(met):
            breaches.append(Violation(met.kind, position, places[met.earlier.origin], why))
    for block in checker.blocks:
        fixed = _fixed(listing, block, checker.table)
        breaches += _inverted(listing, block, fixed)
        for position in range(block.start, block.stop):
            instruction = listing.instructions[position]
            if why := reuse.wrong(listing, position, block.stop):
                breaches.append(Violation("reuse", position, position, why))
            if why := mismatch(instruction.controls) or _touched(instruction, checker.table):
                breaches.append(Violation("fields", position, position, why))
            if not block.start <= instruction.origin < block.stop:
                breaches.append(Violation("order", position, position, "it has left its block"))
            if instruction.origin != position and instruction.origin in fixed:
                breaches.append(Violation("order", position, position, f"it has moved: {fixed[instruction.origin]}"))
    return tuple(dict.fromkeys(breaches))


def may_swap(listing: Listing, position: int) -> str:
    """Why the instruction there and the next may not change places; empty where they may.

    For many questions about one listing keep a `Checker`.
    """
    return Checker(listing).may_swap(position)


class Checker:
    """Answers questions about one listing; keeps the state (`flow.State`) at every place."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.table = latencies.table(listing)
        self.blocks, self._begins = flow.begins(listing, self.table.unknown)
        self._edges = graph(listing)[1]
        self._states: dict[flow.Node, list[flow.State]] = {}
        self._present: dict[tuple[str, int, int, str], int] | None = None

    def broken(self, met: flow.Meeting, strictly: bool = False) -> str:
        """The rule that a meeting breaks, "" where it is late enough; `strictly`: also where no figure is known."""
        what = f"{met.later.operation} meets {met.register} of {met.earlier.operation} ({met.earlier.origin})"
        if met.cycles is None:
            return f"{what}: no barrier that tells it to be over was waited for"
        needed = self.table.needed(met.kind, *latencies.names(met), strictly)
        if needed is None:
            return f"{what}: nothing is known of how late is enough" if strictly else ""
        return f"{what} after {met.cycles} of {needed} cycles" if met.cycles < needed else ""

    def worse(self, met: flow.Meeting) -> str:
        """The rule that a meeting breaks and this listing keeps; a pair that is no farther apart here is no change."""
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
        instructions = self.listing.instructions
        for place in (position, position + 1):
            if why := latencies.pinned(
                instructions[place], instructions[place - 1] if place > block.start else None, self.table
            ):
                return why
        first, second = instructions[position], instructions[position + 1]
        # A pair that the compiler had the other way round may always be swapped back.
        if first.origin < second.origin and (why := latencies.conflict(first, second)):
            return why
        return self._timing(self._swapped(position)[0], block, position)

    def may_control(self, position: int, controls: Controls) -> str:
        """Why an instruction's scheduling fields may not be set to these; empty where they may. Only stall, yield and
        reuse may change, never a barrier."""
        block = self.block(position)
        if block is None:
            return "no instruction stands there"
        changed = msgspec.structs.replace(self.listing.instructions[position], controls=controls)
        if why := _touched(changed, self.table) or mismatch(controls):
            return why
        if why := reuse.wrong(self.listing, position, block.stop, changed):
            return why
        if self.table.operations.isdisjoint({self.listing.instructions[position].operation}):
            return "nothing is known of this operation"
        return self._timing(self.listing.controlled(position, controls), block, position, settle=False)

    def swap(self, position: int) -> tuple[Listing, tuple[Shift | Control, ...]]:
        """The listing after a swap, and the moves of the edit that makes it; it also sets `reuse` bits around it."""
        swapped, bits = self._swapped(position)
        return swapped, (Shift(position, position + 1), *bits)

    def block(self, position: int) -> Block | None:
        """The block that an instruction belongs to."""
        return next((block for block in self.blocks if block.start <= position < block.stop), None)

    def _swapped(self, position: int) -> tuple[Listing, tuple[Control, ...]]:
        block = self.block(position)
        assert block is not None
        return reuse.swapped(self.listing, block.start, position, block.stop)

    def _timing(self, listing: Listing, block: Block, position: int, settle: bool = True) -> str:
        """The rule that a changed listing breaks from `position` to the block's end, or could break behind it."""
        for event in self.within(listing, block, position, settle):
            if why := self._behind(event) if isinstance(event, Left) else self.worse(event):
                return why
        return ""

    def within(
        self, listing: Listing, block: Block, position: int, settle: bool = True
    ) -> Iterator[flow.Meeting | Left]:
        """The meetings in a listing that is changed from `position` on, up to the block's end, and the state there.

        If it may `settle`, the walk ends, without a state, as soon as the state is the same as without the change.
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
        """The rule that is broken in later blocks if the state at the end of one is this."""
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
            for instruction in self.listing.instructions[block.start : block.stop]:
                for met in flow.step(state, instruction, self.table.unknown):
                    if why := self.worse(met):
                        return why
            todo += [(following, flow.left(state)) for following in self._edges(node)]
        return "too much behind the block depends on it"

    def _along(self, node: flow.Node, begin: flow.State) -> list[flow.State]:
        """The states before each instruction of a block, and at its end."""
        if node not in self._states:
            block, states = self.blocks[node[0]], [begin]
            for instruction in self.listing.instructions[block.start : block.stop]:
                state = states[-1].copy()
                flow.step(state, instruction, self.table.unknown)
                states.append(state)
            self._states[node] = states
        return self._states[node]


def _pair(met: flow.Meeting) -> tuple[str, int, int, str]:
    return met.kind, met.earlier.origin, met.later.origin, met.register


def _touched(instruction: Instruction, table: latencies.Table) -> str:
    """Which scheduling field was set to a value that no legal move sets; "" for none.

    ptxas never gives a stall of 0 to an instruction that may move. To some that never move (MEMBAR, DEPBAR, jumps) it
    always gives 4 to 6 cycles, which no register explains.
    """
    now, then = instruction.controls, instruction.compiled
    if (now.write_barrier, now.read_barrier, now.wait) != (then.write_barrier, then.read_barrier, then.wait):
        return TOUCHED
    if now.stall < then.stall:
        if latencies.pinned(instruction, None, table):
            return f"{instruction.operation} is pinned, and stalls no shorter than the compiler had it"
        if not now.stall:
            return "it stalls a cycle at least"
    return ""


def _fixed(listing: Listing, block: Block, table: latencies.Table) -> dict[int, str]:
    """The pinned instructions of a block, by origin, each with the reason; by the compiler's order."""
    inside = [
        instruction
        for instruction in listing.instructions[block.start : block.stop]
        if block.start <= instruction.origin < block.stop
    ]
    before: Instruction | None = None
    fixed = dict[int, str]()
    for instruction in sorted(inside, key=lambda instruction: instruction.origin):
        if why := latencies.pinned(instruction, before, table):
            fixed[instruction.origin] = why
        before = instruction
    return fixed


def _inverted(listing: Listing, block: Block, fixed: dict[int, str]) -> list[Violation]:
    """Pairs of a block that had to keep the compiler's order and do not.

    Two instructions that change places around a pinned one have passed it, although its position is the same.
    """
    inverted, instructions = [], listing.instructions
    latest = max((instruction.origin for instruction in instructions[block.start : block.start + 1]), default=0)
    for place in range(block.start + 1, block.stop):
        if instructions[place].origin < latest:
            for before in range(block.start, place):
                first, second = instructions[place], instructions[before]
                if second.origin > first.origin:
                    passed = next((instruction for instruction in (first, second) if instruction.origin in fixed), None)
                    if why := latencies.conflict(first, second) or (passed and f"nothing passes {passed.operation}"):
                        inverted.append(Violation("order", place, before, why))
        latest = max(latest, instructions[place].origin)
    return inverted
