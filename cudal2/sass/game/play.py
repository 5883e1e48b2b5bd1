"""A state of the game: the present schedule of a window, its legal moves, and the edit that leads to it."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Self

import msgspec
import numpy as np

from cudal2.records import Control, Edit, Shift
from cudal2.sass.blocks import window
from cudal2.sass.game.legality import LONGEST, Legality
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.cuda.compile.cubin import Controls, mismatch


class Kind(IntEnum):
    """The kinds of moves. TOP and BOTTOM move an instruction up or down as far as that is legal; the others move it by
    one place, or change one scheduling field by the smallest step."""

    UP = 0
    DOWN = 1
    TOP = 2
    BOTTOM = 3
    SHORTER = 4
    LONGER = 5
    YIELD = 6
    REUSE = 7


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A move of the instruction at a place of the window. As JSON `[12, 3]`."""

    place: int
    kind: Kind


def unedited(listing: Listing) -> Edit:
    """The edit that changes nothing, of a listing as the compiler wrote it."""
    return Edit(
        listing.kernel, hashlib.sha256(b"".join(instruction.word for instruction in listing.instructions)).hexdigest()
    )


def edited(listing: Listing, edit: Edit) -> Listing:
    """The listing after an edit that was made for it.

    Raises EditRefused where it is for another kernel or other code, or has positions outside the kernel.
    """
    unchanged = unedited(listing)
    if (edit.kernel, edit.sha256) != (unchanged.kernel, unchanged.sha256):
        raise cubin.EditRefused(
            f"the edit is for another cubin: {edit.kernel[:60]} with sha256 {edit.sha256[:12]}…, here is "
            f"{unchanged.kernel[:60]} with {unchanged.sha256[:12]}…; make an edit for this one, or name that one"
        )
    for move in edit.moves:
        if max((move.position,) if isinstance(move, Control) else (move.start, move.end)) >= len(listing.instructions):
            count = len(listing.instructions)
            raise cubin.EditRefused(f"the edit reaches outside the kernel's {count} instructions; make it anew")
    return replayed(listing, edit)


def between(start: Edit, instructions: Sequence[Instruction]) -> Edit:
    """The edit with the fewest shifts that gives the compiler's instructions this order and these fields.

    `start` is the edit that changes nothing. Instructions in a longest increasing subsequence of origins are not moved.
    """
    wanted = [instruction.origin for instruction in instructions]
    moved = [place for place, origin in enumerate(wanted) if place != origin]
    first, behind = (moved[0], moved[-1] + 1) if moved else (0, 0)
    present = list(range(first, behind))
    stays = set(_ascending(wanted[first:behind]))
    moves: list[Shift | Control] = []
    for place, origin in enumerate(wanted[first:behind]):
        if origin not in stays:
            begin = present.index(origin)
            present.pop(begin)
            end = present.index(wanted[first + place - 1]) + 1 if place else 0
            present.insert(end, origin)
            moves.append(Shift(first + begin, first + end))
    assert present == wanted[first:behind]
    for place, instruction in enumerate(instructions):
        if instruction.controls is not instruction.compiled and instruction.controls != instruction.compiled:
            for name, now, then in zip(cubin.FIELDS, _values(instruction.controls), _values(instruction.compiled)):
                if now != then:
                    moves.append(Control(place, name, now))  # type: ignore[arg-type]
    return msgspec.structs.replace(start, moves=tuple(moves))


def _values(controls: Controls) -> tuple[int, ...]:
    return msgspec.structs.astuple(controls)


def _ascending(values: Sequence[int]) -> list[int]:
    """A longest increasing subsequence (M. Fredman, On computing the length of longest increasing subsequences)."""
    tails, places, previous = list[int](), list[int](), list[int]()
    for place, value in enumerate(values):
        length = bisect_left(tails, value)
        tails[length:] = [value, *tails[length + 1 :]]
        places[length:] = [place, *places[length + 1 :]]
        previous.append(places[length - 1] if length else -1)
    ascending, place = list[int](), places[-1] if places else -1
    while place >= 0:
        ascending.append(values[place])
        place = previous[place]
    return ascending[::-1]


class Illegal(ValueError):
    """The move is not legal in this state."""


class Play:
    """The schedule of a kernel in the game; at first the compiler's.

    Raises ValueError where there is no loop to play on, Unlisted for an architecture without latencies.
    """

    def __init__(self, listing: Listing) -> None:
        self.unedited = unedited(listing)
        """The edit that changes nothing."""
        self._legality = Legality(listing, window(listing))
        self._mask: np.ndarray | None = None

    @property
    def listing(self) -> Listing:
        """The whole kernel in its present order."""
        return self._legality.listing

    @property
    def legality(self) -> Legality:
        """The legality of moves in the window; do not change it."""
        return self._legality

    @property
    def instructions(self) -> list[Instruction]:
        """The window's instructions in their present order."""
        return self._legality.instructions

    def __len__(self) -> int:
        """The number of instructions in the window."""
        return len(self._legality.positions)

    def copy(self) -> Self:
        """An independent copy, to come back to or to make other moves from."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._legality = self._legality.copy()
        return other

    def edit(self) -> Edit:
        """The edit that turns the compiler's schedule into this one."""
        return between(self.unedited, self.listing.instructions)

    def mask(self) -> np.ndarray:
        """Which moves are legal: bool [instructions, kinds]."""
        if self._mask is None:
            known, instructions = self._legality, self.instructions
            mask = np.zeros((len(instructions), len(Kind)), bool)
            swaps = known.swaps()
            mask[1:, Kind.UP] = mask[1:, Kind.TOP] = swaps[:-1]
            mask[:, Kind.DOWN] = mask[:, Kind.BOTTOM] = swaps
            mask[:, _FIELDS] = [_changeable(instruction.controls) for instruction in instructions]
            mask[:, Kind.SHORTER] &= known.shorter()
            mask[:, Kind.REUSE] = [
                bool(o.controls.reuse) or known.keepable(place) > 0 for place, o in enumerate(instructions)
            ]
            mask &= ~known.fixed[known.order][:, None]
            self._mask = mask
        return self._mask

    def legal(self) -> list[Move]:
        """All legal moves."""
        return [Move(int(place), Kind(kind)) for place, kind in zip(*np.nonzero(self.mask()))]

    def rise(self, place: int) -> bool:
        """Swaps the instruction at a place with the one before it, if that is legal; returns whether it was."""
        if not place or not self._legality.may_swap(place - 1):
            return False
        self._legality.swap(place - 1)
        self._mask = None
        return True

    def apply(self, move: Move) -> None:
        """Makes a move. Raises Illegal where it is not in the mask."""
        if not (0 <= move.place < len(self) and self.mask()[move.place, move.kind]):
            raise Illegal(f"{move.kind.name} is no legal move of the instruction at place {move.place}; ask the mask")
        self._mask = None
        known, place = self._legality, move.place
        if move.kind is Kind.UP:
            known.swap(place - 1)
        elif move.kind is Kind.DOWN:
            known.swap(place)
        elif move.kind is Kind.TOP:
            while self.rise(place):
                place -= 1
        elif move.kind is Kind.BOTTOM:
            while known.may_swap(place):
                known.swap(place)
                place += 1
        else:
            now = self.instructions[place].controls
            if move.kind is Kind.REUSE:
                new = msgspec.structs.replace(now, reuse=0 if now.reuse else known.keepable(place))
            else:
                new = _changed(move.kind, now)
            known.control(place, new)


_FIELDS = (Kind.SHORTER, Kind.LONGER, Kind.YIELD)


@cache
def _changeable(now: Controls) -> tuple[bool, ...]:
    """For each kind of move that changes a field, whether the new fields go together."""
    changed = (_changed(kind, now) for kind in _FIELDS)
    return tuple(fields.stall <= LONGEST and not mismatch(fields) for fields in changed)


def _changed(kind: Kind, now: Controls) -> Controls:
    """An instruction's scheduling fields after a move that changes its stall or its yield."""
    if kind is Kind.YIELD:
        return msgspec.structs.replace(now, yield_=1 - now.yield_)
    return msgspec.structs.replace(now, stall=max(0, now.stall + (1 if kind is Kind.LONGER else -1)))
