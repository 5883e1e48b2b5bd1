"""Replays an edit on a cubin: 16-byte instruction words are put in another order, their scheduling fields changed.

Above the operation and its operands the 128-bit word holds the compiler's decisions about timing, as public notes on
Volta and later describe (CuAssembler, Mesa's NAK, cicuvc/nvidia-sass-document): cycles until the next instruction
issues; a hint to the scheduler; which of six barriers is counted down when the result is there or the sources are read;
which barriers to wait for; which operands to keep.

Trusted code on bytes that a stranger shaped. What an edit makes of a kernel is not its concern: the edited cubin is
looked at, checked and timed like any other. What can be moved without harm is for whoever proposes edits to know.
"""

import hashlib
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import msgspec
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Symbol, SymbolTableSection

from cudal2.records import Control, Edit, Shift, to_json

_DAMAGE = (ELFError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""What pyelftools runs into, beside its own errors, where numbers, links or names in a file are damaged."""
WORD = 16
"""Bytes of an instruction, from sm_70 on."""
CODE = ".text."
"""What the name of a section with a kernel's code begins with."""
FIELDS = {
    "stall": (105, 4),
    "yield": (109, 1),
    "write_barrier": (110, 3),
    "read_barrier": (113, 3),
    "wait": (116, 6),
    "reuse": (122, 3),
}
"""First bit of each scheduling field in the little-endian word, and how many bits it has."""


@contextmanager
def open_elf(file: bytes) -> Iterator[ELFFile]:
    """The ELF file of these bytes. ValueError where it is none, or where what is read of it inside is damaged."""
    try:
        yield ELFFile(io.BytesIO(file))
    except _DAMAGE as error:
        raise ValueError(f"not an ELF file: {type(error).__name__} {error}"[:300]) from error


def elf_symbols(file: bytes, section: str) -> list[Symbol]:
    """The named symbols of an ELF file. ValueError where it is none."""
    with open_elf(file) as elf:
        table = elf.get_section_by_name(section)
        if not isinstance(table, SymbolTableSection):
            raise ValueError(f"no section {section}")
        return [symbol for symbol in table.iter_symbols() if symbol.name]


class EditRefused(ValueError):
    """The edit does not fit the cubin; the message says why."""


def apply(cubin: bytes, edit: Edit) -> bytes:
    """The cubin after the edit, equal but for the words that it moves or changes; as it was where there are no moves.

    Raises EditRefused where the cubin holds other code than the edit was made for, and where a move reaches outside it.
    """
    start, size = code_of(cubin, edit.kernel)
    code = cubin[start : start + size]
    if (found := hashlib.sha256(code).hexdigest()) != edit.sha256:
        raise EditRefused(
            f"the edit is for another cubin: here the code of {edit.kernel[:60]} has sha256 {found}; make an edit for "
            "this one, or compile the kernel as it was for that one"
        )
    words = [code[place : place + WORD] for place in range(0, size, WORD)]
    for move in edit.moves:
        if isinstance(move, Control):
            _check_positions(move, len(words), move.position)
            words[move.position] = with_field(words[move.position], move.field, move.value)
        else:
            _check_positions(move, len(words), move.start, move.end)
            words.insert(move.end, words.pop(move.start))
    return cubin[:start] + b"".join(words) + cubin[start + size :]


def made_for(cubin: bytes, kernel: str, *moves: Shift | Control) -> Edit:
    """The edit that makes these moves in a kernel of the cubin. Raises EditRefused where there is no such kernel."""
    start, size = code_of(cubin, kernel)
    return Edit(kernel, hashlib.sha256(cubin[start : start + size]).hexdigest(), moves)


def carried(library: bytes, before: bytes, after: bytes) -> bytes:
    """The shared object that carries the cubin `before`, with `after` of the same length in its place.

    Raises EditRefused where it does not carry it exactly once.
    """
    if len(before) != len(after) or library.count(before) != 1:
        raise EditRefused("the shared object does not carry the cubin as the compiler wrote it, exactly once")
    return library.replace(before, after)


@lru_cache(maxsize=16)  # thousands of edits of one cubin ask the same
def code_of(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Offset and size in bytes of a kernel's code in the cubin. Raises EditRefused where it holds no such code."""
    try:
        with open_elf(cubin) as file:
            codes = [s for s in file.iter_sections() if s.name.startswith(CODE)]
            named = [(s["sh_offset"], s["sh_size"], s["sh_type"]) for s in codes if s.name == CODE + kernel]
    except ValueError as error:
        raise EditRefused(str(error)) from error
    if len(named) != 1:
        there = ", ".join(section.name.removeprefix(CODE)[:400] for section in codes[:4])
        raise EditRefused(f"the cubin holds {len(named)} kernels called {kernel[:60]}; it has {there or 'none'}")
    start, size, kind = named[0]
    if kind != "SHT_PROGBITS" or size % WORD or start + size > len(cubin):
        raise EditRefused(f"the code of {kernel[:60]} is no list of instructions within the cubin")
    return start, size


def field(word: bytes, name: str) -> int:
    """The value of a scheduling field of an instruction word."""
    first, bits = FIELDS[name]
    return int.from_bytes(word, "little") >> first & (1 << bits) - 1


def with_field(word: bytes, name: str, value: int) -> bytes:
    """The word with a scheduling field set. Raises EditRefused where the field has not so many bits."""
    first, bits = FIELDS[name]
    if not 0 <= value < 1 << bits:
        raise EditRefused(f"{name} has {bits} bits, which cannot hold {value}; give 0 to {(1 << bits) - 1}")
    number = int.from_bytes(word, "little") & ~(((1 << bits) - 1) << first)
    return (number | value << first).to_bytes(WORD, "little")


def _check_positions(move: Shift | Control, count: int, *positions: int) -> None:
    if not all(0 <= position < count for position in positions):
        raise EditRefused(f"the move {to_json(move)} reaches outside the kernel's {count} instructions; make it anew")


BARRIERS = 6
"""The number of barriers of a warp, numbered from 0."""
NO_BARRIER = 7
"""The value of a barrier field that names no barrier."""
LONGEST_UNYIELDING = 11
"""The largest stall, in cycles, with `yield_` 1; with more, nvdisasm does not decode the instruction."""


class Controls(msgspec.Struct, frozen=True):
    """The scheduling fields of one instruction.

    `stall` is the number of cycles until the warp's next instruction may issue. `yield_` 0 invites the scheduler to
    switch to another warp. `write_barrier` is counted down when the result is there, `read_barrier` when the sources
    are read; NO_BARRIER is none. `wait` is a mask of barriers that must be zero before issue, `reuse` a mask of source
    slots whose value is kept.
    """

    stall: int
    yield_: int
    write_barrier: int
    read_barrier: int
    wait: int
    reuse: int

    @property
    def waits(self) -> tuple[int, ...]:
        """The barriers that the instruction waits for."""
        return tuple(barrier for barrier in range(BARRIERS) if self.wait >> barrier & 1)

    @property
    def sets(self) -> tuple[int, ...]:
        """The barriers that the instruction counts up at issue."""
        return tuple(barrier for barrier in (self.write_barrier, self.read_barrier) if barrier != NO_BARRIER)


def controls_of(word: bytes) -> Controls:
    """The scheduling fields of an instruction word."""
    return Controls(*(field(word, name) for name in FIELDS))


def with_controls(word: bytes, controls: Controls) -> bytes:
    """The word with these scheduling fields, otherwise unchanged.

    Raises EditRefused where a value does not fit into its field.
    """
    for name, value in zip(FIELDS, msgspec.structs.astuple(controls)):
        word = with_field(word, name, value)
    return word


def mismatch(controls: Controls) -> str:
    """Why these fields do not go together; empty where they do.

    After the public notes (cicuvc/nvidia-sass-document, `control_codes.md`); no word of ptxas was seen that breaks it.
    """
    if controls.yield_ and not 1 <= controls.stall <= LONGEST_UNYIELDING:
        return f"yield 1 goes with a stall of 1 to {LONGEST_UNYIELDING}, not {controls.stall}"
    if controls.reuse and not controls.yield_:
        return "an operand is kept for reuse only with yield 1"
    return ""
