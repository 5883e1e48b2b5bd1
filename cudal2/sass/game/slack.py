"""The slack of pairs of instructions: by how many cycles they may come closer until a result is not there in time.

`flow` finds the pairs of instructions of which one must not issue too early for the other. Legal moves keep every
definition before its uses, so they never change which pairs these are, only when the two issue. So the pairs are
found once and kept as arrays, `distance = time[later] - time[earlier] + constant`, and one subtraction gives every
slack. Across blocks the constant is the shortest path from the end of the earlier one's block.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from cudal2.sass import latencies, opcodes
from cudal2.sass.blocks import Block, Node
from cudal2.sass.flow import HORIZON, SYNC, Meeting
from cudal2.sass.latencies import Table
from cudal2.sass.listing import Instruction

Pending = tuple[str, str]
"""A pending operation: `timed`, `finishing` or `armed`, and the register or barrier."""

_PLACES = {"raw": "timed", "waw": "timed", "war": "finishing", "arm": "armed", "sync": "timed"}
NEVER = 1 << 20
"""The slack of a pair without a limit."""


class Pairs(msgspec.Struct, frozen=True):
    """The pairs of one block: those inside it, the operations pending at its end, and those it meets from before."""

    inside: tuple[tuple[str, str, Instruction, Instruction], ...]
    leaves: dict[Pending, tuple[Instruction, ...]]
    ends: frozenset[Pending]
    entered: tuple[tuple[str, str, Instruction], ...]


class _Met:
    """The pending operations in a block, and the pairs found so far."""

    def __init__(self) -> None:
        self.under: dict[Pending, list[Instruction]] = {}
        self.ends = set[Pending]()
        self.inside: list[tuple[str, str, Instruction, Instruction]] = []
        self.entered: list[tuple[str, str, Instruction]] = []

    def meet(self, kind: str, name: str, later: Instruction) -> None:
        place = (_PLACES[kind], name)
        self.inside.extend((kind, name, earlier, later) for earlier in self.under.get(place, ()))
        if place not in self.ends:
            self.entered.append((kind, name, later))

    def pairs(self) -> Pairs:
        leaves = {place: tuple(pending) for place, pending in self.under.items() if pending}
        return Pairs(tuple(self.inside), leaves, frozenset(self.ends), tuple(self.entered))


def pairs(instructions: Iterable[Instruction], unknown: frozenset[str]) -> Pairs:
    """The pairs in a block of these instructions, as `flow.step` finds them, without times and barriers."""
    met = _Met()
    under, ends = met.under, met.ends
    for instruction in instructions:
        variable = instruction.operation in unknown
        for register in instruction.uses:
            met.meet("raw", register, instruction)
        for register in instruction.defines:
            met.meet("waw", register, instruction)
            met.meet("war", register, instruction)
        if opcodes.held(instruction):
            met.meet("sync", SYNC, instruction)
        for register in instruction.defines:
            if not instruction.guard:
                for place in (("timed", register), ("finishing", register)):
                    under.pop(place, None)
                    ends.add(place)
            if not variable:
                under.setdefault(("timed", register), []).append(instruction)
        if not variable and instruction.operation in opcodes.MATRIX:
            for register in instruction.uses:
                under.setdefault(("finishing", register), []).append(instruction)
        if instruction.operation in opcodes.SYNCHRONIZING:
            under.setdefault(("timed", SYNC), []).append(instruction)
    return met.pairs()


def arming(instructions: Iterable[Instruction]) -> Pairs:
    """The pairs of an instruction that sets a barrier and one that waits for it, in a block of these instructions."""
    met = _Met()
    for instruction in instructions:
        for barrier in instruction.controls.waits:
            met.meet("arm", f"barrier {barrier}", instruction)
        for barrier in instruction.controls.sets if instruction.operation not in opcodes.INSTANT else ():
            met.under["armed", f"barrier {barrier}"] = [instruction]
            met.ends.add(("armed", f"barrier {barrier}"))
    return met.pairs()


class Slack:
    """The pairs with at least one instruction in the window, and the times of issue, which the player updates.

    `rows` numbers the window's instructions by origin. For each pair `earlier` and `later` are such numbers (or their
    count, for an instruction outside the window). `ahead`: the later one follows in the same pass through their block.
    `least` is the least distance in cycles and, for pairs that are not `ahead`, `age` the cycles between their blocks.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        parts: tuple[Block, ...],
        edges: Callable[[Node], list[Node]],
        nodes: Iterable[Node],
        table: Table,
        rows: dict[int, int],
    ) -> None:
        self._parts, self._edges, self._table, self._rows = parts, edges, table, rows
        self._nodes = sorted(nodes, key=lambda node: (node[0], -1 if node[1] is None else node[1]))
        self._needed: dict[tuple[str, str, int, int], int] = {}
        self._pairs = [pairs(instructions[part.start : part.stop], table.unknown) for part in parts]
        self._arming = [arming(instructions[part.start : part.stop]) for part in parts]
        self._block = {
            instruction.origin: number
            for number, part in enumerate(parts)
            for instruction in instructions[part.start : part.stop]
        }
        self._window = sorted({self._block[origin] for origin in rows})
        self._at, self._length = dict[int, int](), list[int]()
        for part in parts:
            clock = 0
            for instruction in instructions[part.start : part.stop]:
                self._at[instruction.origin] = clock
                clock += max(1, instruction.controls.stall)
            self._length.append(clock)
        self._paired: dict[tuple[int, ...], np.ndarray] = {}
        self._armed: dict[tuple[int, ...], np.ndarray] = {}
        self.measure(instructions)

    def find(self, instructions: Sequence[Instruction], block: Block) -> None:
        """Renews the pairs of barriers in a block, after a swap that changes who sets one last."""
        self._arming = [
            arming(instructions[part.start : part.stop]) if part == block else known
            for part, known in zip(self._parts, self._arming)
        ]
        self._armed = {}
        self.measure(instructions)

    def measure(self, instructions: Sequence[Instruction]) -> None:
        """Renews times and distances, after a change of stalls has changed the lengths of blocks."""
        self.time = np.zeros(len(self._rows) + 1, np.int64)
        """The cycle in which each row issues, on its block's clock; the last row is for all outside the window."""
        self._length, lengths = self._length.copy(), np.zeros(len(self._rows) + 1, np.int64)
        for number in self._window:
            part, clock = self._parts[number], 0
            inside = [
                (self._rows[instruction.origin], instruction) for instruction in instructions[part.start : part.stop]
            ]
            for row, instruction in inside:
                self.time[row] = clock
                clock += max(1, instruction.controls.stall)
            self._length[number] = clock
            lengths[[row for row, _ in inside]] = clock
        # The lengths of blocks decide which pairs there are only where an operation is still pending behind a block.
        key = tuple(min(self._length[number], HORIZON) for number in self._window)
        if key not in self._paired:
            self._paired[key] = self._columns(self._pairs)
        if key not in self._armed:
            self._armed[key] = self._columns(self._arming)
        self.earlier, self.later, ahead, base, self.age = np.concatenate((self._paired[key], self._armed[key])).T
        self.ahead = ahead.astype(bool)
        self.least = base - np.where(self.ahead, 0, lengths[self.earlier])

    def _columns(self, blocks: Sequence[Pairs]) -> np.ndarray:
        """Columns: earlier, later, ahead, least distance without the length of the earlier one's block, age."""
        closest: dict[tuple[int, int, bool], tuple[int, int]] = {}
        for kind, name, earlier, later, is_ahead, age in self._all(blocks):
            self._add(closest, kind, name, earlier, later, is_ahead, age)
        return np.array([(*key, *value) for key, value in closest.items()], np.int64).reshape(-1, 5)

    def slack(self) -> np.ndarray:
        """For each pair its cycles beyond the least distance."""
        return self.time[self.later] - self.time[self.earlier] - self.least

    def copy(self) -> "Slack":
        """A copy with times of its own."""
        other = object.__new__(Slack)
        other.__dict__.update(self.__dict__)
        other.time = self.time.copy()
        return other

    def _add(
        self,
        closest: dict[tuple[int, int, bool], tuple[int, int]],
        kind: str,
        name: str,
        earlier: Instruction,
        later: Instruction,
        ahead: bool,
        age: int,
    ) -> None:
        outside = len(self._rows)
        first, second = self._rows.get(earlier.origin, outside), self._rows.get(later.origin, outside)
        constant = 0 if ahead else age
        if first == outside:
            constant += (0 if ahead else self._length[self._block[earlier.origin]]) - self._at[earlier.origin]
        if second == outside:
            constant += self._at[later.origin]
        least = self._necessary(kind, name, earlier, later) - constant
        if (first, second) == (outside, outside) and least < -HORIZON:
            return
        key = (first, second, ahead)
        if key not in closest or closest[key][0] < least:
            closest[key] = (least, max(age, closest.get(key, (0, 0))[1]))

    def _all(self, blocks: Sequence[Pairs]) -> Iterable[tuple[str, str, Instruction, Instruction, bool, int]]:
        for number in self._window:
            for kind, name, earlier, later in blocks[number].inside:
                yield kind, name, earlier, later, True, 0
        # Through a short block also what is under way on both sides of it comes closer when it becomes shorter.
        short = min(self._length[number] for number in self._window) < HORIZON
        for node, entering in self._entering(blocks, short).items():
            for kind, name, later in blocks[node[0]].entered:
                within = later.origin in self._rows
                for origin, (earlier, age) in entering.get((_PLACES[kind], name), {}).items():
                    if within or origin in self._rows or short:
                        yield kind, name, earlier, later, False, age

    def _entering(
        self, blocks: Sequence[Pairs], everything: bool
    ) -> dict[Node, dict[Pending, dict[int, tuple[Instruction, int]]]]:
        """What is under way where each block begins, with the least cycles since the end of the block it is from.

        By that age, not by its own, nothing is forgotten that a move to the block's end would bring back. Left out,
        unless `everything` is asked for, is what no instruction of the window has a part in.
        """
        asked = {(_PLACES[kind], name) for number in self._window for kind, name, _ in blocks[number].entered}
        leaves = [
            {
                place: entries
                for place, those in pairs.leaves.items()
                if (
                    entries := {
                        o.origin: (o, 0) for o in those if everything or place in asked or o.origin in self._rows
                    }
                )
            }
            for pairs in blocks
        ]
        at: dict[Node, dict[Pending, dict[int, tuple[Instruction, int]]]] = {node: {} for node in self._nodes}
        todo = list(self._nodes)
        while todo:
            node = todo.pop()
            part, length = blocks[node[0]], self._length[node[0]]
            after = {place: entries.copy() for place, entries in leaves[node[0]].items()}
            for place, entries in at[node].items():
                if place not in part.ends:
                    mine = after.setdefault(place, {})
                    for origin, (one, age) in entries.items():
                        if age + length < HORIZON and origin not in mine:
                            mine[origin] = (one, age + length)
            for following in self._edges(node):
                changed, known = False, at[following]
                for place, entries in after.items():
                    there = known.setdefault(place, {})
                    for origin, (one, age) in entries.items():
                        if origin not in there or there[origin][1] > age:
                            there[origin] = (one, age)
                            changed = True
                if changed and following not in todo:
                    todo.append(following)
        return at

    def _necessary(self, kind: str, name: str, earlier: Instruction, later: Instruction) -> int:
        """The least cycles between the two; where no figure is known, HORIZON."""
        key = (kind, name, earlier.origin, later.origin)
        if key not in self._needed:
            met = Meeting(kind, earlier, later, name, 0)
            needed = self._table.needed(kind, *latencies.names(met), True)
            self._needed[key] = HORIZON if needed is None else needed
        return self._needed[key]
