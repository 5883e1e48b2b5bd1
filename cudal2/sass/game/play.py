"""A state of the game: the present schedule of a window, its legal moves, and the edit that leads to it."""

from functools import cache
from typing import Self

import msgspec
import numpy as np

from cudal2.records import Edit
from cudal2.sass import encoding
from cudal2.sass.encoding import Controls
from cudal2.sass.game.legality import LONGEST, Legality
from cudal2.sass.game.moves import Kind, Move, between, unedited
from cudal2.sass.game.window import window
from cudal2.sass.listing import Instruction, Listing


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
            known, those = self._legality, self.instructions
            mask = np.zeros((len(those), len(Kind)), bool)
            swaps = known.swaps()
            mask[1:, Kind.UP] = mask[1:, Kind.TOP] = swaps[:-1]
            mask[:, Kind.DOWN] = mask[:, Kind.BOTTOM] = swaps
            mask[:, _FIELDS] = [_changeable(one.controls) for one in those]
            mask[:, Kind.SHORTER] &= known.shorter()
            mask[:, Kind.REUSE] = [bool(o.controls.reuse) or known.keepable(place) > 0 for place, o in enumerate(those)]
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
    return tuple(fields.stall <= LONGEST and not encoding.mismatch(fields) for fields in changed)


def _changed(kind: Kind, now: Controls) -> Controls:
    """An instruction's scheduling fields after a move that changes its stall or its yield."""
    if kind is Kind.YIELD:
        return msgspec.structs.replace(now, yield_=1 - now.yield_)
    return msgspec.structs.replace(now, stall=max(0, now.stall + (1 if kind is Kind.LONGER else -1)))
