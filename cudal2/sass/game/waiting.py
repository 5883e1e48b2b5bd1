"""Whether after a swap every barrier still protects what it did: the part of the rules that does not depend on cycles.

It keeps `flow.State`, without times, at every place of the window. A swap of two neighbours changes nothing in it if
neither waits, sets a barrier or has an unknown latency. Other neighbours are issued in both orders. If the state is the
same after both, nothing behind them can differ; otherwise the code behind them is walked.
"""

from collections.abc import Hashable, Iterable, Sequence

from cudal2.sass import flow
from cudal2.sass.blocks import Block, Node
from cudal2.sass.dependence import FOLLOWED
from cudal2.sass.flow import State
from cudal2.sass.latencies import ARMING
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import NO_BARRIER

NEAR = 3
"""Barriers' times are renewed for so many instructions behind a swap; further on no wait can come too early."""
BEHIND = 1 << 30
"""Stands for a position behind the block."""


class Waiting:
    """The pending operations at every place of the window's blocks; `those` are the instructions in present order."""

    def __init__(self, listing: Listing, window: Iterable[Block], unknown: frozenset[str]) -> None:
        self.unknown, self._window = unknown, tuple(window)
        self._behind: dict[Hashable, State] = {}
        self._find(listing)

    def anew(self, listing: Listing) -> "Waiting":
        """The same for another order in the window."""
        other = object.__new__(Waiting)
        other.unknown, other._window, other._behind = self.unknown, self._window, self._behind
        other._find(listing)
        return other

    def _find(self, listing: Listing) -> None:
        _, self._edges = flow.graph(listing)
        starts = {block.start for block in self._window}

        def through(state: State, block: Block) -> State:
            """Remembers results outside the window, where nothing ever changes."""
            key = None if block.start in starts else (block.start, _key(state))
            if key is None or key not in self._behind:
                state = state.copy()
                for instruction in listing.instructions[block.start : block.stop]:
                    self._breaks(state, instruction)
                state = flow.left(state)
                if key is None:
                    return state
                self._behind[key] = state
            return self._behind[key]

        self.blocks, self._begins = flow.begins(listing, self.unknown, through)
        self._along: dict[int, dict[Node, list[State]]] = {}
        for node in self._begins:
            block = self.blocks[node[0]]
            if block.start in starts:
                self._along.setdefault(block.start, {})[node] = self._states(node, block, listing.instructions)

    @property
    def nodes(self) -> Iterable[Node]:
        """The blocks that control reaches, for each call."""
        return self._begins

    def may_swap(self, instructions: Sequence[Instruction], block: Block, position: int) -> tuple[bool, int]:
        """Whether barriers allow a swap of the instruction there and the next; and the position up to which the order
        of later instructions decides that (BEHIND where code behind the block does)."""
        first, second = instructions[position], instructions[position + 1]
        if not (self._concerned(first) or self._concerned(second)):
            return True, position
        related, end = shared(first, second), position
        for node, states in self._along.get(block.start, {}).items():
            state = states[position - block.start].copy()
            if self._breaks(state, second) or self._breaks(state, first):
                return False, position
            if related or not _same(state, states[position - block.start + 2]):
                legal, reached = self._walk(instructions, node, block, state, position + 2)
                end = max(end, reached)
                if not legal:
                    return False, end
        return True, end

    def renew(self, instructions: Sequence[Instruction], block: Block, position: int) -> int | None:
        """Renews the states from `position` on, after a swap or a change of fields there.

        Returns the position from which on the states are as before; None where they differ at the block's end, so that
        those behind must be renewed, too.
        """
        if not (nodes := self._along.get(block.start)):
            return position
        ends = []
        for states in nodes.values():
            for place in range(position, block.stop):
                state, before = states[place - block.start].copy(), states[place - block.start + 1]
                self._breaks(state, instructions[place])
                states[place - block.start + 1] = state
                same = place > position and _same(state, before)
                if same and place > position + NEAR:
                    break
            ends.append(place + 1 if same else None)
        return None if None in ends else max(end for end in ends if end is not None)

    def copy(self) -> "Waiting":
        """An independent copy."""
        other = object.__new__(Waiting)
        other.__dict__ = self.__dict__ | {
            "_along": {
                start: {node: states.copy() for node, states in nodes.items()} for start, nodes in self._along.items()
            }
        }
        return other

    def _concerned(self, instruction: Instruction) -> bool:
        controls = instruction.controls
        barriers = (controls.write_barrier, controls.read_barrier) != (NO_BARRIER, NO_BARRIER)
        return bool(controls.wait or barriers or instruction.operation in self.unknown)

    def _changes(self, state: State, instruction: Instruction) -> bool:
        """Whether the instruction touches anything that is pending."""
        if self._concerned(instruction):
            return True
        apart = instruction.defines.isdisjoint(state.writing) and instruction.uses.isdisjoint(state.writing)
        return not (apart and instruction.defines.isdisjoint(state.reading))

    def _breaks(self, state: State, instruction: Instruction) -> bool:
        """Issues the instruction; whether it meets a pending operation, or waits for a barrier too early."""
        if not self._changes(state, instruction):
            state.clock += max(1, instruction.controls.stall)
            return False
        met = flow.step(state, instruction, self.unknown)
        state.timed.clear()
        state.finishing.clear()
        return any(m.cycles is None or (m.kind == "arm" and m.cycles < ARMING) for m in met)

    def _states(self, node: Node, block: Block, instructions: Sequence[Instruction]) -> list[State]:
        states = [self._begins[node]]
        for instruction in instructions[block.start : block.stop]:
            state = states[-1].copy()
            self._breaks(state, instruction)
            states.append(state)
        return states

    def _walk(
        self, instructions: Sequence[Instruction], node: Node, block: Block, state: State, position: int
    ) -> tuple[bool, int]:
        """Whether no rule breaks from `position` on, until the state is the same as without the swap, or to the block's
        end and behind it, as `Checker` does; and the position up to which it looked."""
        along = self._along[block.start][node]
        for place in range(position, block.stop):
            if self._breaks(state, instructions[place]):
                return False, place
            if place >= position + NEAR and _same(state, along[place - block.start + 1]):
                return True, place
        todo = [(following, state) for following in self._edges(node)]
        for _ in range(FOLLOWED):
            if not todo:
                return True, BEHIND
            node, left = todo.pop()
            begin = self._begins[node]
            state = flow.joined(begin, _bare(flow.left(left)))
            if _same(state, flow.joined(begin, begin)):
                continue
            block = self.blocks[node[0]]
            if any(self._breaks(state, instruction) for instruction in instructions[block.start : block.stop]):
                return False, BEHIND
            todo += [(following, state) for following in self._edges(node)]
        return False, BEHIND


def _bare(state: State) -> State:
    other = state.copy()
    other.timed, other.finishing = {}, {}
    return other


def shared(first: Instruction, second: Instruction) -> bool:
    """Whether the two use the same barrier, so that their order decides who set it last."""
    before, after = first.controls, second.controls
    return bool(set(before.sets) & {*after.waits, *after.sets} or set(after.sets) & set(before.waits))


def _same(state: State, other: State) -> bool:
    """Whether the same operations are pending in two states; times are ignored."""
    for mine, its in ((state.writing, other.writing), (state.reading, other.reading)):
        if mine.keys() != its.keys():
            return False
        for register, entries in mine.items():
            if entries is not its[register] and _names(entries) != _names(its[register]):
                return False
    return {b: t.one.origin for b, t in state.armed.items()} == {b: t.one.origin for b, t in other.armed.items()}


def _key(state: State) -> Hashable:
    """A key that is equal for states with the same pending operations and the same ages of barriers."""
    awaited = (
        frozenset((register, tuple((e.one.origin, e.mask) for e in entries)) for register, entries in pending.items())
        for pending in (state.writing, state.reading)
    )
    return *awaited, frozenset((b, t.one.origin, t.time - state.clock) for b, t in state.armed.items())


def _names(entries: Iterable[flow.Awaited]) -> set[tuple[int, int]]:
    return {(entry.one.origin, entry.mask) for entry in entries}
