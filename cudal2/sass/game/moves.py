"""The moves of a player, and the edit that turns one listing into another."""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from cudal2.records import Control, Edit, Shift
from cudal2.sass import encoding
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile import cubin


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
    return Edit(listing.kernel, hashlib.sha256(b"".join(one.word for one in listing.instructions)).hexdigest())


def edited(listing: Listing, edit: Edit) -> Listing:
    """The listing after an edit that was made for it.

    Raises EditRefused where it is for another kernel or other code, or has positions outside the kernel.
    """
    found = unedited(listing)
    if (edit.kernel, edit.sha256) != (found.kernel, found.sha256):
        raise cubin.EditRefused(
            f"the edit is for another cubin: {edit.kernel[:60]} with sha256 {edit.sha256[:12]}…, here is "
            f"{found.kernel[:60]} with {found.sha256[:12]}…; make an edit for this one, or name that one"
        )
    for move in edit.moves:
        if max((move.position,) if isinstance(move, Control) else (move.start, move.end)) >= len(listing.instructions):
            count = len(listing.instructions)
            raise cubin.EditRefused(f"the edit reaches outside the kernel's {count} instructions; make it anew")
    return replayed(listing, edit)


def between(start: Edit, those: Sequence[Instruction]) -> Edit:
    """The edit with the fewest shifts that gives the compiler's instructions this order and these fields.

    `start` is the edit that changes nothing. Instructions in a longest increasing subsequence of origins are not moved.
    """
    wanted = [one.origin for one in those]
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
    for place, one in enumerate(those):
        if one.controls is not one.compiled and one.controls != one.compiled:
            for name, now, then in zip(cubin.FIELDS, _values(one.controls), _values(one.compiled)):
                if now != then:
                    moves.append(Control(place, name, now))  # type: ignore[arg-type]
    return msgspec.structs.replace(start, moves=tuple(moves))


def _values(controls: encoding.Controls) -> tuple[int, ...]:
    return msgspec.structs.astuple(controls)


def _ascending(values: Sequence[int]) -> list[int]:
    """A longest increasing subsequence (M. Fredman, On computing the length of longest increasing subsequences)."""
    tails, places, previous = list[int](), list[int](), list[int]()
    for place, value in enumerate(values):
        length = bisect_left(tails, value)
        tails[length:] = [value, *tails[length + 1 :]]
        places[length:] = [place, *places[length + 1 :]]
        previous.append(places[length - 1] if length else -1)
    found, place = list[int](), places[-1] if places else -1
    while place >= 0:
        found.append(values[place])
        place = previous[place]
    return found[::-1]
