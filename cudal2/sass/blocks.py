"""The basic blocks of a listing, the control flow between them, and its innermost loops: the window of a game.

A kernel spends its time in the loops, so the window is those with matrix instructions, if there are any. They are the
natural loops of the flow graph: an edge back to a block that every path to it has come through (A. Aho et al.,
Compilers, section 9.6).
"""

from collections.abc import Callable
from itertools import pairwise

import msgspec

from cudal2.sass.listing import Instruction, Listing

_ENDS = frozenset("BRA BRX BRXU BREAK BSYNC CALL EXIT JMP JMX JMXU KILL RET RTT WARPSYNC YIELD".split())
"""Operations that end a block: jumps, divergence and reconvergence of a warp's threads (CUDA Binary Utilities)."""
_INDIRECT = frozenset("BRX BRXU JMX JMXU".split())

Node = tuple[int, int | None]
"""A block; and, inside a function that is called, the block to return to, else None."""
LARGEST = 512
"""The most instructions in a window; loops with the most matrix instructions are taken first."""


class Block(msgspec.Struct, frozen=True):
    """Positions `start` to `stop` (exclusive) run from first to last; `successors` are blocks, counted from 0.

    `calls` is the block that a call at its end enters, which comes back to the next block in the code.
    """

    start: int
    stop: int
    successors: tuple[int, ...]
    calls: int | None = None


def blocks(listing: Listing) -> tuple[Block, ...]:
    """The blocks in the order of the code. An indirect jump may go to every block."""
    instructions = listing.instructions
    starts = {0, *(instruction.target for instruction in instructions if instruction.target is not None)}
    starts |= {position + 1 for position, instruction in enumerate(instructions[:-1]) if instruction.operation in _ENDS}
    bounds = [*sorted(starts), len(instructions)]
    number = {start: place for place, start in enumerate(bounds[:-1])}
    meeting = [
        (_barrier(instruction), instruction.target)
        for instruction in instructions
        if instruction.operation == "BSSY" and instruction.target is not None
    ]
    parts = []
    for start, stop in pairwise(bounds):
        last = instructions[stop - 1]
        goes: set[int] = set() if _leaves(last) or stop == len(instructions) else {stop}
        calls = None
        if last.target is not None and _is_call(last):
            calls = number[last.target]
        elif last.target is not None:
            goes.add(last.target)
        if last.operation == "BSYNC":
            # The threads continue where the BSSY said. ptxas puts most BSYNCs, but not all, right before that place.
            places = {place for barrier, place in meeting if barrier == _barrier(last)}
            goes = goes if stop in places else goes | places
        if last.operation in _INDIRECT or (last.operation in ("CALL", "JMP") and last.target is None):
            goes.update(number)
        parts.append(Block(start, stop, tuple(sorted(number[place] for place in goes)), calls))
    return tuple(parts)


def graph(listing: Listing) -> tuple[tuple[Block, ...], Callable[[Node], list[Node]]]:
    """The blocks, and a function that says where control may go from one of them.

    A function is analysed separately for each of its calls, and returns to that call; a call inside a call may return
    to any. Otherwise the states of different calls would be mixed.
    """
    instructions, parts = listing.instructions, blocks(listing)
    returns = [place + 1 for place, part in enumerate(parts) if instructions[part.stop - 1].operation == "CALL"]

    def edges(node: Node) -> list[Node]:
        place, back = node
        part = parts[place]
        following: list[Node] = [(number, back) for number in part.successors]
        if part.calls is not None and place + 1 < len(parts):
            following.append((part.calls, place + 1))
        if instructions[part.stop - 1].operation == "RET":
            following += [(back, None)] if back is not None else [(number, None) for number in returns]
        return following

    return parts, edges


def _is_call(instruction: Instruction) -> bool:
    """Whether it calls a function by name; ptxas also writes CALL for a jump out of divergent code, to a bare label."""
    return instruction.operation == "CALL" and "`(.L" not in instruction.operands


def _leaves(instruction: Instruction) -> bool:
    """Whether control never reaches the next instruction."""
    if instruction.guard and instruction.guard != "@PT":
        return False
    if instruction.operation in ("BRA", "JMP"):  # a further operand beside the target is a condition
        return instruction.operands.startswith(("`", "0x"))
    return instruction.operation in ("EXIT", "RET", "CALL", "KILL", "RTT", *_INDIRECT)


def _barrier(instruction: Instruction) -> str:
    """The register of BSSY and BSYNC: `B0`."""
    return instruction.operands.partition(",")[0].strip()


class Loop(msgspec.Struct, frozen=True):
    """An innermost loop: its blocks in the order of the code, and how many matrix instructions it has."""

    blocks: tuple[Block, ...]
    matrix: int

    @property
    def size(self) -> int:
        """Instructions of all its blocks."""
        return sum(block.stop - block.start for block in self.blocks)


class Window(msgspec.Struct, frozen=True):
    """The loops of a game; no block is in two of them."""

    loops: tuple[Loop, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all loops in the order of the code."""
        return tuple(sorted((block for loop in self.loops for block in loop.blocks), key=lambda block: block.start))

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of all instructions, ascending."""
        return tuple(position for block in self.blocks for position in range(block.start, block.stop))


def window(listing: Listing, largest: int = LARGEST) -> Window:
    """The innermost loops of a listing. Raises ValueError where no loop has at most `largest` instructions."""
    loops = sorted(_innermost(listing), key=lambda loop: (-loop.matrix, loop.blocks[0].start))
    if loops and loops[0].matrix:
        loops = [loop for loop in loops if loop.matrix]
    else:
        loops = sorted(loops, key=lambda loop: -loop.size)[:1]
    chosen, left = list[Loop](), largest
    for loop in loops:
        if loop.size <= left and not {b.start for b in loop.blocks} & {b.start for c in chosen for b in c.blocks}:
            chosen.append(loop)
            left -= loop.size
    if not chosen:
        raise ValueError(
            f"{listing.kernel[:60]} has no loop of at most {largest} instructions to play on; choose another kernel"
        )
    return Window(tuple(chosen))


def _innermost(listing: Listing) -> list[Loop]:
    parts = blocks(listing)
    loops = _natural(parts)
    instructions = listing.instructions

    def matrix(numbers: frozenset[int]) -> int:
        return sum(
            "MMA" in instruction.operation
            for n in numbers
            for instruction in instructions[parts[n].start : parts[n].stop]
        )

    counted = {numbers: matrix(numbers) for numbers in loops if any(_works(listing, parts[n]) for n in numbers)}
    # A loop around another is not innermost, unless the outer one multiplies and the inner one only waits.
    inner = [
        numbers
        for numbers, count in counted.items()
        if not any(other < numbers and (counted[other] or not count) for other in counted)
    ]
    return [Loop(tuple(parts[n] for n in sorted(numbers)), counted[numbers]) for numbers in inner]


def _works(listing: Listing, block: Block) -> bool:
    """Whether a block does more than jump; the one behind the last EXIT only jumps to itself."""
    instructions = listing.instructions[block.start : block.stop]
    return any(instruction.operation not in ("BRA", "NOP") for instruction in instructions)


def _natural(parts: tuple[Block, ...]) -> set[frozenset[int]]:
    """The natural loops, each as the numbers of its blocks; loops with the same header are joined."""
    reached, dominators = _dominators(parts)
    before: dict[int, set[int]] = {number: set() for number in reached}
    for number in reached:
        for following in _after(parts, number):
            before[following].add(number)
    bodies: dict[int, set[int]] = {}
    for tail in reached:
        for head in _after(parts, tail):
            if head in dominators[tail]:
                body, todo = bodies.setdefault(head, {head}), [tail]
                while todo:
                    if (number := todo.pop()) not in body:
                        body.add(number)
                        todo += before[number]
    return {frozenset(body) for body in bodies.values()}


def _after(parts: tuple[Block, ...], number: int) -> tuple[int, ...]:
    """The successors of a block; a call returns to the next block."""
    if parts[number].calls is not None and number + 1 < len(parts):
        return (*parts[number].successors, number + 1)
    return parts[number].successors


def _dominators(parts: tuple[Block, ...]) -> tuple[list[int], dict[int, set[int]]]:
    """The blocks that control reaches, and for each its dominators, with itself."""
    reached, todo = list[int](), [0]
    while todo:
        if (number := todo.pop()) not in reached:
            reached.append(number)
            todo += _after(parts, number)
    dominators = {number: set(reached) for number in reached}
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for number in reached:
            for following in _after(parts, number):
                if following and not dominators[following] <= dominators[number] | {following}:
                    dominators[following] &= dominators[number] | {following}
                    changed = True
    return reached, dominators
