"""Reads and writes the scheduling fields of an instruction word, and says which values go together.

`worker.cuda.compile.cubin.FIELDS` says where the fields are. Above the operation and its operands the 128-bit word
holds the compiler's decisions about timing, as public notes on Volta and later describe (CuAssembler, Mesa's NAK,
cicuvc/nvidia-sass-document): cycles until the next instruction issues; a hint to the scheduler; which of six barriers
is counted down when the result is there or the sources are read; which barriers to wait for; which operands to keep.
"""

import msgspec

from cudal2.worker.cuda.compile import cubin

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


def decode(word: bytes) -> Controls:
    """The scheduling fields of an instruction word."""
    return Controls(*(cubin.field(word, name) for name in cubin.FIELDS))


def encode(word: bytes, controls: Controls) -> bytes:
    """The word with these scheduling fields, otherwise unchanged.

    Raises EditRefused where a value does not fit into its field.
    """
    for name, value in zip(cubin.FIELDS, msgspec.structs.astuple(controls)):
        word = cubin.with_field(word, name, value)
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
