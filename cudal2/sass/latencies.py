"""Which two instructions must keep their order, which never move, and how many cycles one must issue before another
that touches the same register.

The figures come from the compiler's own schedules (`cudal2.sass.mining` made data/sass/latencies.json): the least
distance that the compiler ever left is enough; operations of one pipe share their figures. Operands that are read at
different times must have different names, or the least distance of one would be taken for all. A pair that was hardly
ever seen has no figure: no schedule is blamed for it, and no move may depend on it.

Order (`conflict`) is kept whatever the scheduling fields say. For registers, by the definitions and uses that nvdisasm
names. For memory, by PTX ISA, "Memory Consistency Model": program order holds between accesses of one thread to the
same address. As addresses are not compared here, loads may pass only loads. An asynchronous copy (`cp.async`) is
ordered only with what waits for it. But it must not overwrite data that an earlier load still reads: so a copy may move
behind a load, but not a load behind a copy.
"""

from functools import cache

import msgspec

from cudal2.files import asset
from cudal2.sass import opcodes
from cudal2.sass.flow import HORIZON, Meeting
from cudal2.sass.listing import Instruction, Listing, Unlisted

TIGHT = 3
"""A least distance is well known if it was seen in so many kernels."""
READING = 8
"""Cycles after which a matrix instruction has read its sources: no well-known figure of such a pair is larger."""
ARMING = 2
"""Cycles after which a barrier counts the operation that set it (NAK says so, too); an earlier wait has no effect."""
_SUBKINDS = frozenset({"WIDE", "HI", "16816", "1688", "F16", "F32", "CTA"})
"""Modifiers that tell operations of different latency apart."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The least cycles that the compiler left between two operations; the number of kernels with exactly these, and
    with any."""

    cycles: int
    least: int
    all: int


class Table(msgspec.Struct, frozen=True):
    """The figures of one architecture.

    `operations` are all that were seen, `unknown` those of unknown latency, whose end only a barrier signals.
    `distances` is indexed by the kind of meeting, the earlier operation and the later one.
    """

    unknown: frozenset[str]
    operations: frozenset[str]
    distances: dict[str, dict[str, Seen]]

    @cache  # noqa: B019 (tables live as long as the process)
    def needed(self, kind: str, earlier: str, later: str, strictly: bool) -> int | None:
        """The least cycles between the two; None where no figure is known.

        Not `strictly`: a bound for which a schedule can surely be blamed. `strictly`: the least the compiler ever left.
        """
        if kind == "arm":
            return ARMING
        seen = self.distances.get(f"{kind} {earlier}", {}).get(later)
        tight = seen is not None and seen.least >= TIGHT
        if kind == "sync":
            return seen.cycles if seen is not None and (tight or strictly) else None
        if kind == "raw" and not strictly:
            return min(seen.cycles, _anywhere(earlier, later)) if seen is not None and tight else None
        if strictly:
            # No figure is concluded from others here: nothing moves closer than ptxas ever had such a pair.
            return seen.cycles if seen is not None else None
        if kind == "war":
            return min(seen.cycles, READING) if seen is not None and tight else None
        # The later result must not be there first: a difference of latencies, which the compiler seldom comes near to.
        slowest, quickest = self._latency(earlier), self._latency(f"{earlier.split()[0]} {later}")
        if slowest is None or quickest is None:
            return None
        bound = max(1, slowest - quickest + 1)
        return bound if seen is None else min(bound, seen.cycles)

    def _latency(self, earlier: str) -> int | None:
        """The least of the well-known distances to a use of its result, guards aside."""
        row = self.distances.get(f"raw {earlier}", {})
        known = [seen.cycles for name, seen in row.items() if seen.least >= TIGHT and not name.endswith("@")]
        return min(known, default=None)

    def __hash__(self) -> int:
        return id(self)


@cache
def _anywhere(earlier: str, later: str) -> int:
    """The least such distance on any architecture: pipes of one name are alike, but for matrix instructions."""
    rows = [table.distances.get(f"raw {earlier}", {}) for table in _tables().values() if "MMA" not in earlier]
    return min((row[later].cycles for row in rows if later in row and row[later].least >= TIGHT), default=HORIZON)


@cache
def _tables() -> dict[str, Table]:
    return msgspec.json.decode(asset("data", "sass", "latencies.json").read_bytes(), type=dict[str, Table])


def table(listing: Listing) -> Table:
    """The figures for a listing's architecture. Raises Unlisted where there are none."""
    figures = _tables().get(listing.architecture)
    if figures is None:
        raise Unlisted(
            f"there are no latencies for {listing.architecture or 'an unnamed architecture'}, only for "
            f"{', '.join(sorted(_tables()))}; python -m cudal2.sass.mining reads them off kernels compiled for it"
        )
    return figures


def names(met: Meeting) -> tuple[str, str]:
    """The table's names for the two: the earlier definition or use, and the later one.

    `R imad.WIDE+` is a result except its first register, `HMMA/c` a source that may be read later than the others.
    """
    earlier, register = met.earlier, met.register
    modifiers = _modifiers(earlier)
    first = f"{register.rstrip('0123456789')} {'.'.join((opcodes.pipe(earlier), *modifiers))}"
    if met.kind == "war":
        return first, opcodes.pipe(met.later)
    upper = "WIDE" in modifiers and bool(earlier.word) and register[0] == "R" and register != f"R{earlier.word[2]}"
    return first + "+" * upper, use(met.later, register) if met.kind == "raw" else opcodes.pipe(met.later)


def use(instruction: Instruction, register: str) -> str:
    """The table's name for a use: `int`; `any@` for the guard; `imad/c` for an operand that may be read later.

    That is the third operand (an addend or accumulator), and of a memory instruction the second, its data. The
    upper half of the addend of an IMAD.WIDE is `imad.WIDE/c+`: on Hopper it is read two cycles after the lower one.
    (Found by fuzzing on an H200: as long as both had one name, lower halves came too late, and addresses were wrong.)
    `imad.HI` and `imad.WIDE` differ, too: from one IMAD.HI to the next it takes 6 cycles, to an IMAD only 4.
    """
    pipe = opcodes.pipe(instruction)
    if register == instruction.guard.lstrip("@!"):
        return f"{instruction.operation if instruction.target is not None else 'any'}@"
    if register[0] != "R" or not instruction.word or pipe == "int":
        return pipe
    places = {name: instruction.word[byte] for name, byte in (("a", 3), ("b", 4), ("c", 8))}
    wide = dict.fromkeys("abc", 4) if pipe in ("HMMA", "memory") else {"a": 1, "b": 1, "c": 2}
    number = int(register[1:])
    near = [
        name for name, base in places.items() if f"R{base}" in instruction.uses and base <= number < base + wide[name]
    ]
    exact = [name for name in near if places[name] == number] or near
    late = "b" if pipe == "memory" else "c"
    name = ".".join((pipe, *_modifiers(instruction))) if pipe == "imad" else pipe
    if exact != [late]:
        return name
    return f"{name}/{late}" + "+" * ("WIDE" in name and number == places["c"] + 1)


def _modifiers(instruction: Instruction) -> list[str]:
    """The modifiers that change an operation's latency."""
    if instruction.operation not in ("HMMA", "IMAD", "MEMBAR", "UIMAD"):
        return []
    return [word for word in instruction.opcode.split(".")[1:] if word in _SUBKINDS]


_SHARED = opcodes.SHARED_LOADS | opcodes.SHARED_STORES | opcodes.COPIES
_GLOBAL = opcodes.GLOBAL_LOADS | opcodes.GLOBAL_STORES | opcodes.COPIES
_LOCAL = opcodes.LOCAL_LOADS | opcodes.LOCAL_STORES
_SPACES = (_SHARED, _GLOBAL, _LOCAL)
_GENERIC = frozenset({"LD", "ST"})
_LOADS = opcodes.SHARED_LOADS | opcodes.GLOBAL_LOADS | opcodes.LOCAL_LOADS
_ORDERED = frozenset({"STRONG", "MMIO", "SYS", "SM", "VC"})
"""Modifiers of accesses that order other threads' accesses."""


def pinned(instruction: Instruction, before: Instruction | None, table: Table) -> str:
    """Why an instruction never moves; "" where it may. `before` is the instruction in front of it."""
    if instruction.operation not in opcodes.KNOWN or instruction.target is not None:
        return f"{instruction.operation} is pinned"
    if instruction.operation not in table.operations:
        return f"nothing is known of the latency of {instruction.operation} here"
    if instruction.named:
        return "the cubin names its offset"
    if any(clock in instruction.operands for clock in opcodes.CLOCKS):
        return "it reads a clock"
    if instruction.operation in opcodes.MEMORY and _ORDERED.intersection(instruction.opcode.split(".")):
        return "other threads' memory accesses are ordered by it"
    if dummy(instruction) or (before is not None and dummy(before)):
        return "an asynchronous copy and the empty loads in front of it are one bundle"
    return ""


def conflict(first: Instruction, second: Instruction) -> str:
    """Why the second of two instructions must not come before the first; empty where it may."""
    if shared := first.defines & second.uses:
        return f"{min(shared)} is defined, then used"
    if shared := first.uses & second.defines:
        return f"{min(shared)} is used, then defined anew"
    if shared := first.defines & second.defines:
        return f"{min(shared)} is defined twice"
    return _memory(first, second)


def _memory(first: Instruction, second: Instruction) -> str:
    earlier, later = first.operation, second.operation
    if earlier in _LOADS and later in _LOADS:
        return ""
    if earlier in opcodes.COPIES and later in opcodes.COPIES | _LOADS:
        return ""
    if later in opcodes.COPIES and earlier in opcodes.GLOBAL_LOADS:
        return ""
    generic = {earlier, later} & _GENERIC and {earlier, later} <= opcodes.MEMORY - opcodes.CONSTANT_LOADS
    if generic or any(earlier in space and later in space for space in _SPACES):
        return f"{earlier} and {later} may touch the same memory"
    return ""


def dummy(instruction: Instruction) -> bool:
    """Whether an instruction is an empty load that ptxas puts in front of an asynchronous copy."""
    return instruction.operation == "LDS" and instruction.guard == "@!PT"
