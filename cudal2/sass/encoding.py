"""The scheduling fields of an instruction word: read, written, and which values go together.

Where the fields lie is stated once, in `worker.cuda.compile.cubin.FIELDS`. The 128-bit word holds, above the operation
and its operands, what the compiler decided about time, as the public notes on Volta and later say (CuAssembler, Mesa's
NAK, cicuvc/nvidia-sass-document): cycles until the next instruction issues, a hint to the scheduler, which of six
barriers a result or a read of sources will count down, which barriers to wait for, which operands to keep.
"""

import msgspec

from cudal2.worker.cuda.compile import cubin

BARRIERS = 6
"""How many barriers a warp has, numbered from 0."""
NO_BARRIER = 7
"""What stands in a barrier field that names none."""
LONGEST_UNYIELDING = 11
"""The most cycles of stall that go with `yield_` 1; more is no instruction to nvdisasm."""


class Controls(msgspec.Struct, frozen=True):
    """The scheduling fields of one instruction.

    `stall` counts cycles until the warp's next instruction may issue. `yield_` 0 invites the scheduler to another warp.
    `write_barrier` counts down when the result is there, `read_barrier` when the sources are read; NO_BARRIER is none.
    `wait` is a mask of barriers that must be at zero before issue, `reuse` of source slots whose value is kept.
    """

    stall: int
    yield_: int
    write_barrier: int
    read_barrier: int
    wait: int
    reuse: int

    @property
    def waits(self) -> tuple[int, ...]:
        """The barriers waited for."""
        return tuple(barrier for barrier in range(BARRIERS) if self.wait >> barrier & 1)

    @property
    def sets(self) -> tuple[int, ...]:
        """The barriers counted up at issue."""
        return tuple(barrier for barrier in (self.write_barrier, self.read_barrier) if barrier != NO_BARRIER)


def decode(word: bytes) -> Controls:
    """The scheduling fields of an instruction word."""
    return Controls(*(cubin.field(word, name) for name in cubin.FIELDS))


def encode(word: bytes, controls: Controls) -> bytes:
    """The word with these scheduling fields and everything else as it was.

    Raises EditRefused where a field has not so many bits.
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
