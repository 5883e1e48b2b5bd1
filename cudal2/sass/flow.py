"""Data-flow analysis: which results, reads of sources and barriers are still pending when an instruction issues.

The checker and the miner of latencies share one walk over all paths. It finds every pair of instructions of which one
must not issue too early for the other (a meeting), with their distance in cycles or the barriers that would order
them. Public notes say how barriers work (CuAssembler; Mesa's NAK, `calc_instr_deps.rs`; cicuvc/nvidia-sass-document,
`scoreboards.md`): a barrier counts pending operations, and a wait for it ends when it is at zero.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cudal2.sass import opcodes
from cudal2.sass.blocks import Block, Node, graph
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import NO_BARRIER

HORIZON = 64
"""Cycles after which every result of known latency is there: more than twice the slowest, which is HMMA's."""
SYNC = "synchronization"
"""A pseudo-register that BAR and its like define and every later memory access uses."""


class Timed(NamedTuple):
    """An instruction of known latency that issued at `time` on the block's clock."""

    one: Instruction
    time: int


class Awaited(NamedTuple):
    """An instruction of unknown latency; `mask` has the barriers that signal its end, none of them waited for yet."""

    one: Instruction
    mask: int
    operation: str


class Meeting(NamedTuple):
    """Two instructions that touch one register, of which the earlier is still pending as far as the fields say.

    `kind` is `raw`, `waw`, `war`; `arm` for a wait that may come before the barrier counts; or `sync` for an access of
    memory that may come before the threads have synchronised. `cycles` is the least distance of their issues over all
    paths, or None where no number of cycles is enough and only a barrier can order them.
    """

    kind: str
    earlier: Instruction
    later: Instruction
    register: str
    cycles: int | None


class State:
    """The pending operations at one place, by register; and for each barrier who set it last. `order` says which
    operations end in order."""

    __slots__ = ("armed", "clock", "finishing", "order", "reading", "timed", "writing")

    def __init__(self, order: opcodes.Order) -> None:
        self.order, self.clock = order, 0
        self.timed: dict[str, tuple[Timed, ...]] = {}
        """Results of known latency."""
        self.finishing: dict[str, tuple[Timed, ...]] = {}
        """Sources that matrix instructions read for some cycles."""
        self.writing: dict[str, tuple[Awaited, ...]] = {}
        self.reading: dict[str, tuple[Awaited, ...]] = {}
        self.armed: dict[int, Timed] = {}

    def copy(self) -> "State":
        """An independent copy."""
        other = State(self.order)
        other.clock, other.timed, other.finishing = self.clock, self.timed.copy(), self.finishing.copy()
        other.writing, other.reading, other.armed = self.writing.copy(), self.reading.copy(), self.armed.copy()
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def step(state: State, instruction: Instruction, unknown: frozenset[str]) -> list[Meeting]:
    """Issue an instruction: returns its meetings, and changes the state to that after it.

    `unknown` are the operations of unknown latency, whose end only a barrier signals.
    """
    controls, now = instruction.controls, state.clock
    met: list[Meeting] = []
    for barrier in controls.waits:
        if (setter := state.armed.get(barrier)) is not None and now - setter.time < HORIZON:
            met.append(Meeting("arm", setter.one, instruction, f"barrier {barrier}", now - setter.time))
    # BAR and MEMBAR do not show that earlier memory instructions have read their sources. In 360 cubins ptxas never
    # overwrites such a source after one of them alone, but also waits for the barrier. (Found by fuzzing on an H200: an
    # address overwritten behind a MEMBAR.SC.CTA and before that wait was a wrong one.)
    # Nor does a DEPBAR, of the barriers that it names: ptxas waits for them as well.
    if controls.wait:
        _wait(state.writing, controls.wait)
        _wait(state.reading, controls.wait)
    for kind, registers in (("raw", instruction.uses), ("waw", instruction.defines)):
        for register in registers:
            for timed in state.timed.get(register, ()):
                if now - timed.time < HORIZON:
                    met.append(Meeting(kind, timed.one, instruction, register, now - timed.time))
            met += [Meeting(kind, entry.one, instruction, register, None) for entry in state.writing.get(register, ())]
    for timed in state.timed.get(SYNC, ()) if opcodes.held(instruction) else ():
        if now - timed.time < HORIZON:
            met.append(Meeting("sync", timed.one, instruction, SYNC, now - timed.time))
    over = state.order.read_before.get(instruction.operation, frozenset())
    for register in instruction.defines:
        for timed in state.finishing.get(register, ()):
            if now - timed.time < HORIZON:
                met.append(Meeting("war", timed.one, instruction, register, now - timed.time))
        for entry in state.reading.get(register, ()):
            if entry.operation not in over:
                met.append(Meeting("war", entry.one, instruction, register, None))
    _issue(state, instruction, instruction.operation in unknown)
    state.clock = now + max(1, controls.stall)
    return met


def _issue(state: State, instruction: Instruction, variable: bool) -> None:
    """Adds the pending operations of an instruction that issues."""
    now, kept = state.clock, bool(instruction.guard)
    ended = _bit(instruction.controls.write_barrier)
    read = _bit(instruction.controls.read_barrier) | ended
    for register in instruction.defines:
        before = state.timed.pop(register, ()) if kept else state.timed.pop(register, ())[:0]
        if not kept:
            state.writing.pop(register, None)
            state.finishing.pop(register, None)
            state.reading.pop(register, None)
        if variable:
            if before:
                state.timed[register] = before
            state.writing[register] = (
                *state.writing.get(register, ()),
                Awaited(instruction, ended, instruction.operation),
            )
        else:
            state.timed[register] = (*(was for was in before if now - was.time < HORIZON), Timed(instruction, now))
    if variable:
        if ended and (earlier := state.order.told.get(instruction.operation)):
            _cover(state.writing, earlier, ended)
        if read and (earlier := state.order.read_told.get(instruction.operation)):
            _cover(state.reading, earlier, read)
        for register in instruction.uses:
            if state.order.read_late(instruction, register):
                state.reading[register] = (
                    *state.reading.get(register, ()),
                    Awaited(instruction, read, instruction.operation),
                )
    elif instruction.operation in opcodes.MATRIX:
        for register in instruction.uses:
            recent = (was for was in state.finishing.get(register, ()) if now - was.time < HORIZON)
            state.finishing[register] = (*recent, Timed(instruction, now))
    if instruction.operation in opcodes.SYNCHRONIZING:
        state.timed[SYNC] = (
            *(was for was in state.timed.get(SYNC, ()) if now - was.time < HORIZON),
            Timed(instruction, now),
        )
    for barrier in instruction.controls.sets if instruction.operation not in opcodes.INSTANT else ():
        state.armed[barrier] = Timed(instruction, now)


def _bit(barrier: int) -> int:
    return 0 if barrier == NO_BARRIER else 1 << barrier


def _wait(pending: dict[str, tuple[Awaited, ...]], mask: int) -> None:
    """Removes the operations whose end these barriers signal."""
    for register, entries in tuple(pending.items()):
        kept = tuple(entry for entry in entries if not entry.mask & mask)
        if not kept:
            del pending[register]
        elif len(kept) < len(entries):
            pending[register] = kept


def _cover(pending: dict[str, tuple[Awaited, ...]], earlier: frozenset[str], mask: int) -> None:
    """Lets an instruction's barriers also signal the end of these earlier operations, which end no later."""
    for register, entries in pending.items():
        if any(entry.operation in earlier and mask & ~entry.mask for entry in entries):
            pending[register] = tuple(e._replace(mask=e.mask | mask) if e.operation in earlier else e for e in entries)


def left(state: State) -> State:
    """The state at a block's end, with its clock set to 0, without results that are there by their age."""

    def aged(timed: dict[str, tuple[Timed, ...]]) -> dict[str, tuple[Timed, ...]]:
        young = {
            register: tuple(
                Timed(instruction, time - state.clock) for instruction, time in entries if state.clock - time < HORIZON
            )
            for register, entries in timed.items()
        }
        return {register: entries for register, entries in young.items() if entries}

    other = state.copy()
    other.clock, other.timed, other.finishing = 0, aged(state.timed), aged(state.finishing)
    other.armed = {
        barrier: Timed(instruction, time - state.clock)
        for barrier, (instruction, time) in state.armed.items()
        if state.clock - time < HORIZON
    }
    return other


def joined(first: State, second: State) -> State:
    """The state where two paths join: what is pending on either, with the later issue and the common barriers."""
    both = State(first.order)
    for name in ("timed", "finishing"):
        mine, other = getattr(first, name), getattr(second, name)
        setattr(both, name, {r: _youngest(*mine.get(r, ()), *other.get(r, ())) for r in mine.keys() | other.keys()})
    for name in ("writing", "reading"):
        mine, other = getattr(first, name), getattr(second, name)
        setattr(both, name, {r: _surest(*mine.get(r, ()), *other.get(r, ())) for r in mine.keys() | other.keys()})
    barriers = first.armed.keys() | second.armed.keys()
    candidates = {b: [s.armed[b] for s in (first, second) if b in s.armed] for b in barriers}
    both.armed = {
        b: max(setters, key=lambda timed: (timed.time, timed.one.origin)) for b, setters in candidates.items()
    }
    return both


def _youngest(*entries: Timed) -> tuple[Timed, ...]:
    youngest: dict[int, Timed] = {}
    for entry in entries:
        known = youngest.get(entry.one.origin)
        if known is None or known.time < entry.time:
            youngest[entry.one.origin] = entry
    return tuple(youngest[origin] for origin in sorted(youngest))


def _surest(*entries: Awaited) -> tuple[Awaited, ...]:
    if len(entries) == 1:
        return entries
    surest: dict[int, Awaited] = {}
    for entry in entries:
        known = surest.get(entry.one.origin)
        surest[entry.one.origin] = (
            entry if known is None else Awaited(known.one, known.mask & entry.mask, known.operation)
        )
    return tuple(surest[origin] for origin in sorted(surest))


def begins(
    listing: Listing, unknown: frozenset[str], through: Callable[[State, Block], State] | None = None
) -> tuple[tuple[Block, ...], dict[Node, State]]:
    """The blocks, and the state at the start of each that is reached, for each call.

    `through` maps a state to that behind a block (`left` of it); without it, every instruction is stepped through.
    """
    parts, edges = graph(listing)
    first: Node = (0, None)
    at, todo = {first: State(opcodes.order(listing.architecture))}, [first]
    while todo:
        node = todo.pop()
        block = parts[node[0]]
        if through:
            after = through(at[node], block)
        else:
            state = at[node].copy()
            for instruction in listing.instructions[block.start : block.stop]:
                step(state, instruction, unknown)
            after = left(state)
        for following in edges(node):
            known = at.get(following)
            new = after if known is None else joined(known, after)
            if new != known:
                at[following] = new
                if following not in todo:
                    todo.append(following)
    return parts, at


def meetings(
    listing: Listing, unknown: frozenset[str], begun: tuple[tuple[Block, ...], dict[Node, State]] | None = None
) -> Iterator[tuple[int, Meeting]]:
    """Every meeting of the kernel, with the position of the later instruction. `begun` is the result of `begins`."""
    parts, at = begun or begins(listing, unknown)
    for (number, _), begin in at.items():
        state = begin.copy()
        for position in range(parts[number].start, parts[number].stop):
            for meeting in step(state, listing.instructions[position], unknown):
                yield position, meeting
