"""Shows what an edit changes: the compiler's schedule and the edited one side by side."""

import msgspec

from cudal2.records import Edit
from cudal2.sass import reuse
from cudal2.sass.encoding import Controls
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Instruction, Listing

AROUND = 2
"""Unchanged places shown before and after each changed one."""
WIDTH = 58
"""Characters of an instruction's text."""


class Place(msgspec.Struct, frozen=True):
    """The instructions at `position` before and after the edit; `moved` where they or their stalls differ."""

    position: int
    before: Instruction
    after: Instruction

    @property
    def moved(self) -> bool:
        return self.before != self.after


def side_by_side(listing: Listing, edit: Edit) -> list[list[Place]]:
    """The stretches of the kernel that an edit changes, with AROUND places on either side."""
    edited = replayed(listing, edit).instructions
    places = [Place(*one) for one in zip(range(len(edited)), listing.instructions, edited)]
    stretches: list[list[Place]] = []
    shown = -1
    for place in places:
        if place.moved:
            start = max(place.position - AROUND, shown + 1)
            if not stretches or start > shown + 1:
                stretches.append([])
            stretches[-1] += places[start : place.position + 1]
            shown = place.position
            continue
        if stretches and place.position - _last(stretches[-1]) <= AROUND:
            stretches[-1].append(place)
            shown = place.position
    return stretches


def text(listing: Listing, edit: Edit) -> str:
    """The stretches as text; beside an instruction that moved is by how many places."""
    return "\n\n".join("\n".join(map(_line, stretch)) for stretch in side_by_side(listing, edit))


def _last(stretch: list[Place]) -> int:
    """The last changed position of a stretch."""
    return max(place.position for place in stretch if place.moved)


def _line(place: Place) -> str:
    way = place.position - place.after.origin
    left, right = (f"{fields(one.controls)} {reuse.text(one)[:WIDTH]:<{WIDTH}}" for one in (place.before, place.after))
    return f"{place.position:>5}  {left}  {f'{way:+}' if way else '*' if place.moved else '':>5}  {right}".rstrip()


def fields(controls: Controls) -> str:
    """Waits, read and write barrier, yield, stall, as public notes write them: `--1---:-:0:Y:04`."""
    waits = "".join(str(b) if b in controls.waits else "-" for b in range(6))
    read, write = ("-" if b == 7 else str(b) for b in (controls.read_barrier, controls.write_barrier))
    return f"{waits}:{read}:{write}:{'-' if controls.yield_ else 'Y'}:{controls.stall:02}"
