"""Text for people: a listing, and the rules that it breaks."""

from collections.abc import Sequence

from cudal2.sass import reuse
from cudal2.sass.dependence import Violation
from cudal2.sass.game.moves import Kind
from cudal2.sass.game.play import Play
from cudal2.sass.listing import Listing
from cudal2.sass.moved import fields


def listing(those: Listing) -> str:
    """A line for each instruction: position, scheduling fields, its text; in the game's window (|) also whether it may
    change places with the one above (^) and below (v)."""
    free: dict[int, str] = {}
    try:
        play = Play(those)
    except ValueError as error:
        head = str(error)
    else:
        mask = play.mask()
        for place, position in enumerate(play.legality.positions):
            up, down = ("^" if mask[place, Kind.UP] else ""), ("v" if mask[place, Kind.DOWN] else "")
            free[position] = f"|{up}{down}"
        pairs = int(mask[:, Kind.DOWN].sum())
        head = f"{len(play)} instructions are played on; {pairs} pairs of neighbours may change places"
    lines = [f"{those.kernel} for {those.architecture}: {len(those.instructions)} instructions", head]
    for position, one in enumerate(those.instructions):
        lines.append(f"{position:>5}  {fields(one.controls)}  {free.get(position, ''):<3}  {reuse.text(one)}")
    return "\n".join(lines)


def violations(those: Listing, broken: Sequence[Violation]) -> str:
    """A line for each broken rule."""
    if not broken:
        return f"{those.kernel}: no rule is broken by {len(those.instructions)} instructions"
    lines = [f"{one.rule} at {one.position} (with {one.earlier}): {one.why}" for one in broken]
    return "\n".join([*lines, f"{those.kernel}: rules broken: {len(broken)}; such an edit is not measured"])
