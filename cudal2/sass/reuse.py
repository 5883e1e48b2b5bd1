"""Operands that an instruction keeps for the next reader of the same slot, and when such a value is stale.

Bits 122 to 124 are for the first, second and third source, whose registers are in bytes 3, 4 and 8 of the word. A kept
value is lost at the next read of its slot (Huerta et al., "Analyzing Modern NVIDIA GPU cores", 2025). So no instruction
may define the register before that read, and in ptxas's code none does.
Without the bit an instruction computes the same, so the bit is cleared wherever the order around it changes.
"""

import msgspec

from cudal2.sass.listing import Instruction, Listing

_BYTES = (3, 4, 8)
REACH = 64
"""How many instructions a kept operand is followed."""


def kept(one: Instruction) -> list[tuple[int, str]]:
    """Slot and register of each operand that an instruction keeps."""
    if not one.controls.reuse:
        return []
    marked = [slot for slot in range(3) if one.controls.reuse >> slot & 1]
    return [(slot, register) for slot in marked if (register := read_in(one, slot)) in one.uses]


def read_in(one: Instruction, slot: int) -> str:
    """The register in a slot of the word. If it is not among `uses`, the bits are something else."""
    return f"R{one.word[_BYTES[slot]]}"


def reader(listing: Listing, position: int, slot: int, stop: int) -> int | None:
    """The position of the next instruction before `stop` that reads the slot; None where there is none nearby."""
    for later in range(position + 1, min(stop, position + REACH)):
        one = listing.instructions[later]
        if read_in(one, slot) in one.uses:
            return later
    return None


def stale(listing: Listing, position: int, stop: int, given: Instruction | None = None) -> str:
    """Which kept operand is overwritten before it is read again; empty where none is. The block ends at `stop`.

    With `given`, as if that instruction were at the position.
    """
    one = given or listing.instructions[position]
    for slot, register in kept(one):
        end = reader(listing, position, slot, stop)
        between = (one, *listing.instructions[position + 1 : stop if end is None else end])
        if any(register in one.defines for one in between):
            return register
    return ""


def cleared(listing: Listing, start: int, position: int, stop: int) -> tuple[Listing, tuple[int, ...]]:
    """The listing without operands kept by, or across, the two instructions at `position`; and where bits were cleared.

    `start` and `stop` are those of the block.
    """
    places = [place for place in (position, position + 1) if kept(listing.instructions[place])]
    for earlier in range(max(start, position - REACH), position):
        if not (slots := kept(listing.instructions[earlier])):
            continue
        ends = [reader(listing, earlier, slot, stop) for slot, _ in slots]
        if any(end is None or end >= position for end in ends):
            places.append(earlier)
    for place in places:
        controls = msgspec.structs.replace(listing.instructions[place].controls, reuse=0)
        listing = listing.controlled(place, controls)
    return listing, tuple(sorted(places))
