"""Text for people: a listing, the rules that it breaks, and what an edit changes, side by side."""

from collections.abc import Sequence

import msgspec

from cudal2.records import Edit
from cudal2.sass import reuse
from cudal2.sass.dependence import Violation
from cudal2.sass.game.play import Kind, Play
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import Controls

AROUND = 2
"""Unchanged places shown before and after each changed one."""
WIDTH = 58
"""Characters of an instruction's text."""


class EditedPosition(msgspec.Struct, frozen=True):
    """The instructions at `position` before and after the edit; `moved` where they or their stalls differ."""

    position: int
    before: Instruction
    after: Instruction

    @property
    def moved(self) -> bool:
        return self.before != self.after


def side_by_side(listing: Listing, edit: Edit) -> list[list[EditedPosition]]:
    """The stretches of the kernel that an edit changes, with AROUND places on either side."""
    edited = replayed(listing, edit).instructions
    places = [EditedPosition(*row) for row in zip(range(len(edited)), listing.instructions, edited)]
    stretches: list[list[EditedPosition]] = []
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


def changes(listing: Listing, edit: Edit) -> str:
    """The stretches as text; beside an instruction that moved is by how many places."""
    return "\n\n".join("\n".join(map(_line, stretch)) for stretch in side_by_side(listing, edit))


def _last(stretch: list[EditedPosition]) -> int:
    """The last changed position of a stretch."""
    return max(place.position for place in stretch if place.moved)


def _line(place: EditedPosition) -> str:
    way = place.position - place.after.origin
    left, right = (
        f"{fields(instruction.controls)} {reuse.text(instruction)[:WIDTH]:<{WIDTH}}"
        for instruction in (place.before, place.after)
    )
    return f"{place.position:>5}  {left}  {f'{way:+}' if way else '*' if place.moved else '':>5}  {right}".rstrip()


def fields(controls: Controls) -> str:
    """Waits, read and write barrier, yield, stall, as public notes write them: `--1---:-:0:Y:04`."""
    waits = "".join(str(b) if b in controls.waits else "-" for b in range(6))
    read, write = ("-" if b == 7 else str(b) for b in (controls.read_barrier, controls.write_barrier))
    return f"{waits}:{read}:{write}:{'-' if controls.yield_ else 'Y'}:{controls.stall:02}"


def listing(schedule: Listing) -> str:
    """A line for each instruction: position, scheduling fields, its text; in the game's window (|) also whether it may
    change places with the one above (^) and below (v)."""
    free: dict[int, str] = {}
    try:
        play = Play(schedule)
    except ValueError as error:
        head = str(error)
    else:
        mask = play.mask()
        for place, position in enumerate(play.legality.positions):
            up, down = ("^" if mask[place, Kind.UP] else ""), ("v" if mask[place, Kind.DOWN] else "")
            free[position] = f"|{up}{down}"
        pairs = int(mask[:, Kind.DOWN].sum())
        head = f"{len(play)} instructions are played on; {pairs} pairs of neighbours may change places"
    lines = [f"{schedule.kernel} for {schedule.architecture}: {len(schedule.instructions)} instructions", head]
    for position, instruction in enumerate(schedule.instructions):
        lines.append(
            f"{position:>5}  {fields(instruction.controls)}  {free.get(position, ''):<3}  {reuse.text(instruction)}"
        )
    return "\n".join(lines)


def violations(schedule: Listing, broken: Sequence[Violation]) -> str:
    """A line for each broken rule."""
    if not broken:
        return f"{schedule.kernel}: no rule is broken by {len(schedule.instructions)} instructions"
    lines = [
        f"{violation.rule} at {violation.position} (with {violation.earlier}): {violation.why}" for violation in broken
    ]
    return "\n".join([*lines, f"{schedule.kernel}: rules broken: {len(broken)}; such an edit is not measured"])
