"""The basic blocks of a listing and the control flow between them."""

from collections.abc import Callable
from itertools import pairwise

import msgspec

from cudal2.sass.listing import Instruction, Listing

_ENDS = frozenset("BRA BRX BRXU BREAK BSYNC CALL EXIT JMP JMX JMXU KILL RET RTT WARPSYNC YIELD".split())
"""Operations that end a block: jumps, divergence and reconvergence of a warp's threads (CUDA Binary Utilities)."""
_INDIRECT = frozenset("BRX BRXU JMX JMXU".split())

Node = tuple[int, int | None]
"""A block; and, inside a function that is called, the block to return to, else None."""


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
    those = listing.instructions
    starts = {0, *(one.target for one in those if one.target is not None)}
    starts |= {position + 1 for position, one in enumerate(those[:-1]) if one.operation in _ENDS}
    bounds = [*sorted(starts), len(those)]
    number = {start: place for place, start in enumerate(bounds[:-1])}
    meeting = [(_barrier(one), one.target) for one in those if one.operation == "BSSY" and one.target is not None]
    found = []
    for start, stop in pairwise(bounds):
        last = those[stop - 1]
        goes: set[int] = set() if _leaves(last) or stop == len(those) else {stop}
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
        found.append(Block(start, stop, tuple(sorted(number[place] for place in goes)), calls))
    return tuple(found)


def graph(listing: Listing) -> tuple[tuple[Block, ...], Callable[[Node], list[Node]]]:
    """The blocks, and a function that says where control may go from one of them.

    A function is analysed separately for each of its calls, and returns to that call; a call inside a call may return
    to any. Otherwise the states of different calls would be mixed.
    """
    those, parts = listing.instructions, blocks(listing)
    returns = [place + 1 for place, part in enumerate(parts) if those[part.stop - 1].operation == "CALL"]

    def edges(node: Node) -> list[Node]:
        place, back = node
        part = parts[place]
        following: list[Node] = [(number, back) for number in part.successors]
        if part.calls is not None and place + 1 < len(parts):
            following.append((part.calls, place + 1))
        if those[part.stop - 1].operation == "RET":
            following += [(back, None)] if back is not None else [(number, None) for number in returns]
        return following

    return parts, edges


def _is_call(one: Instruction) -> bool:
    """Whether it calls a function by name; ptxas also writes CALL for a jump out of divergent code, to a bare label."""
    return one.operation == "CALL" and "`(.L" not in one.operands


def _leaves(one: Instruction) -> bool:
    """Whether control never reaches the next instruction."""
    if one.guard and one.guard != "@PT":
        return False
    if one.operation in ("BRA", "JMP"):  # a further operand beside the target is a condition
        return one.operands.startswith(("`", "0x"))
    return one.operation in ("EXIT", "RET", "CALL", "KILL", "RTT", *_INDIRECT)


def _barrier(one: Instruction) -> str:
    """The register of BSSY and BSYNC: `B0`."""
    return one.operands.partition(",")[0].strip()
