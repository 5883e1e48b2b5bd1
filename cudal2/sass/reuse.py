"""Operands that an instruction keeps for the next one that reads them, and when a kept value would be wrong.

Bits 122 to 124 are for the first, second and third source, whose registers are in bytes 3, 4 and 8 of the word. Without
the bit an instruction computes the same. There is one place for each slot and for registers of even and of odd number,
and matrix instructions have places of their own (Huerta et al., "Analyzing Modern NVIDIA GPU cores", 2025, describe the
first two). A kept value stays until the next instruction that reads into that place; only operations that may keep an
operand themselves do: loads and stores, which have an address in the same slot, do not. So ptxas goes by, in 4,172 of
4,172 registers that matrix instructions keep, and 4,909 of 4,927 others (experiments/sass/kept.py). On an H200, where
a load lay between and a second one overwrote what was kept, the next matrix instruction multiplied the old value.
"""

import re
from collections.abc import Iterator

import msgspec

from cudal2.records import Control
from cudal2.sass import opcodes
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import mismatch

_BYTES = (3, 4, 8)
_WIDEST = 4
"""Registers of the longest operand, of a matrix instruction."""
BANKS = 2
REACH = 64
"""How many instructions a kept operand is followed."""


def operand(instruction: Instruction, slot: int) -> tuple[str, ...]:
    """The registers that a slot of the word names; () where its bits are something else."""
    first = instruction.word[_BYTES[slot]]
    if f"R{first}" not in instruction.uses:
        return ()
    if slot == 2 and instruction.operation == "IMAD" and {"WIDE", "HI"} & set(instruction.opcode.split(".")):
        addend = f"R{first}", f"R{first + 1}"  # it has 64 bits
        return tuple(name for name in addend if name in instruction.uses)
    others = {instruction.word[_BYTES[other]] for other in range(len(_BYTES)) if other != slot}
    behind = first + 1
    while behind - first < _WIDEST and behind not in others and f"R{behind}" in instruction.uses:
        behind += 1
    return tuple(f"R{number}" for number in range(first, behind))


def kept(instruction: Instruction) -> list[tuple[int, str]]:
    """Slot and register of all that an instruction keeps."""
    slots = [slot for slot in range(len(_BYTES)) if instruction.controls.reuse >> slot & 1]
    return [(slot, register) for slot in slots for register in operand(instruction, slot)]


def reader(listing: Listing, position: int, slot: int, register: str, stop: int) -> int | None:
    """The position of the next instruction before `stop` that reads into the place where the instruction at `position`
    keeps a register; None where there is none nearby."""
    matrix, bank = _matrix(listing.instructions[position]), _bank(register)
    for later in range(position + 1, min(stop, position + REACH)):
        instruction = listing.instructions[later]
        registers = (
            operand(instruction, slot)
            if instruction.operation in opcodes.KEEPING and _matrix(instruction) == matrix
            else ()
        )
        if any(_bank(other) == bank for other in registers):
            return later
    return None


def repeated(listing: Listing, position: int, stop: int) -> int:
    """As a mask, the slot that a matrix instruction may keep because the next one reads the same registers in it.

    As ptxas does, which sets one bit of a matrix instruction at most.
    """
    instruction = listing.instructions[position]
    if not _matrix(instruction) or mismatch(msgspec.structs.replace(instruction.controls, reuse=1)):
        return 0
    for later in range(position + 1, min(stop, position + REACH)):
        if _matrix(other := listing.instructions[later]):
            between = listing.instructions[position:later]
            for slot in range(2):
                registers = operand(instruction, slot)
                if registers and registers == operand(other, slot) and not _defined(registers, between):
                    return 1 << slot
            break
    return 0


def wrong(listing: Listing, position: int, stop: int, given: Instruction | None = None) -> str:
    """Why an instruction must not keep what it does; empty where it may. The block ends at `stop`.

    With `given`, as if that instruction were at the position.
    """
    instruction = given or listing.instructions[position]
    for slot, register in kept(instruction):
        end = reader(listing, position, slot, register, stop)
        if _defined((register,), (instruction, *listing.instructions[position + 1 : stop if end is None else end])):
            return f"{register} is kept, and overwritten"
        if end is None and any(listing.instructions[place].origin != place for place in range(position, stop)):
            return f"{register} is kept beyond the block, whose order has changed"
    if instruction.controls.reuse & ~instruction.compiled.reuse & ~repeated(listing, position, stop):
        return "an operand is kept that was not"
    return ""


def keepable(listing: Listing, position: int, stop: int) -> int:
    """What an instruction that keeps nothing may keep, as a mask: what is read again next, or what the compiler set."""
    instruction = listing.instructions[position]
    for mask in (repeated(listing, position, stop), instruction.compiled.reuse):
        given = msgspec.structs.replace(instruction, controls=msgspec.structs.replace(instruction.controls, reuse=mask))
        if mask and not mismatch(given.controls) and not wrong(listing, position, stop, given):
            return mask
    return 0


def swapped(listing: Listing, start: int, position: int, stop: int) -> tuple[Listing, tuple[Control, ...]]:
    """The listing after the instructions at `position` and behind it have changed places, and the bits set for it.

    What is kept by these two or across them is kept no more, but a matrix instruction keeps what the next one reads
    again. `start` and `stop` are those of the block.
    """
    listing = listing.swapped(position)
    changes = []
    for place in _around(listing, start, position, stop):
        controls = listing.instructions[place].controls
        if (reuse := repeated(listing, place, stop)) != controls.reuse:
            listing = listing.controlled(place, msgspec.structs.replace(controls, reuse=reuse))
            changes.append(Control(place, "reuse", reuse))
    return listing, tuple(changes)


def text(instruction: Instruction) -> str:
    """The assembly text with `.reuse` where the bits are now; nvdisasm marked those that the compiler set."""
    if instruction.controls.reuse == instruction.compiled.reuse:
        return instruction.text
    result, comma, sources = instruction.text.replace(".reuse", "").partition(", ")
    for slot, register in kept(instruction):
        if register == operand(instruction, slot)[0]:
            sources = re.sub(rf"\b{register}\b(?!\.reuse)", f"{register}.reuse", sources, count=1)
    return result + comma + sources


def _around(listing: Listing, start: int, position: int, stop: int) -> Iterator[int]:
    """The places whose bits a swap puts in doubt."""
    pair = (position, position + 1)
    yield from pair
    nearest = any(_matrix(listing.instructions[place]) for place in pair)
    for place in range(position - 1, max(start, position - REACH) - 1, -1):
        instruction = listing.instructions[place]
        ends = [reader(listing, place, slot, register, stop) for slot, register in kept(instruction)]
        if any(end is None or end >= position for end in ends) or (nearest and _matrix(instruction)):
            yield place
        nearest = nearest and not _matrix(instruction)


def _matrix(instruction: Instruction) -> bool:
    return instruction.operation in opcodes.MATRIX


def _bank(register: str) -> int:
    return int(register[1:]) % BANKS


def _defined(registers: tuple[str, ...], instructions: tuple[Instruction, ...]) -> bool:
    return any(not instruction.defines.isdisjoint(registers) for instruction in instructions)
