"""A simulator that estimates the cycles of a schedule: some warps of one block on one scheduler, an issue per cycle.

It models stalls, the barriers that instructions set and wait for, groups of asynchronous copies, barriers of the block,
and pipes that take one instruction in several cycles. It ranks schedules of one kernel, and is the judge where there is
no GPU. It leaves out caches and memory bandwidth, bank conflicts and the effect of `reuse`, the instruction cache, the
other schedulers, mbarriers (TMA, wgmma) and branches (each loop of a window runs through its blocks in the order of the
code). So its speedups are not those of a GPU.
"""

from collections.abc import Sequence

import msgspec

from cudal2.config import MachineConfig
from cudal2.records import Edit, Measured, Status
from cudal2.sass import latencies, opcodes
from cudal2.sass.blocks import Window, window
from cudal2.sass.game.play import edited
from cudal2.sass.listing import Instruction, Listing
from cudal2.worker.cuda.compile.cubin import NO_BARRIER

PIPES = 4
"""The number of pipes: matrix, shared memory, global memory and copies; 0 is for all others, and is never busy."""


class _Step(msgspec.Struct, frozen=True):
    """One instruction for the simulator; `meets`: it is a barrier of the block; `groups`: how many may stay pending."""

    stall: int
    stays: bool
    waits: tuple[int, ...]
    writes: int
    reads: int
    pipe: int
    busy: int
    latency: int
    read_latency: int
    meets: bool
    copies: bool
    commits: bool
    groups: int | None


def cycles(listing: Listing, loops: Window, machine: MachineConfig | None = None) -> float:
    """The estimated cycles of one iteration, summed over the loops of the window."""
    machine = machine or MachineConfig()
    unknown = latencies.table(listing).unknown
    total = 0.0
    for loop in loops.loops:
        instructions = [
            instruction for block in loop.blocks for instruction in listing.instructions[block.start : block.stop]
        ]
        steps = [_step(instruction, instruction.operation in unknown, machine) for instruction in instructions]
        total += _Scheduler(steps, machine).run() / machine.iterations
    return total


class Simulated:
    """The simulator as a judge of edits of one listing; ValueError where there is no loop to simulate."""

    def __init__(self, listing: Listing, machine: MachineConfig | None = None) -> None:
        self._listing, self._window, self._machine = listing, window(listing), machine or MachineConfig()
        self.cycles = cycles(listing, self._window, self._machine)
        """The estimated cycles of the unedited kernel."""

    def of(self, listing: Listing) -> float:
        """The estimated speedup of another schedule of the kernel."""
        return self.cycles / cycles(listing, self._window, self._machine)

    def __call__(self, edits: Sequence[Edit]) -> list[Measured]:
        speedups = [self.of(edited(self._listing, edit)) for edit in edits]
        return [Measured(Status.OK, speedup, speedup, speedup, 1) for speedup in speedups]


def _step(instruction: Instruction, variable: bool, machine: MachineConfig) -> _Step:
    pipe, busy, latency = _pipe(instruction, machine)
    fields = instruction.controls
    return _Step(
        stall=max(1, fields.stall),
        stays=bool(fields.yield_),
        waits=tuple(number for number in range(6) if (fields.wait | opcodes.drained(instruction)) >> number & 1),
        writes=fields.write_barrier if variable else NO_BARRIER,
        reads=fields.read_barrier if variable else NO_BARRIER,
        pipe=pipe,
        busy=busy,
        latency=latency,
        read_latency=machine.read_latency,
        meets=instruction.operation == "BAR" and "SYNC" in instruction.opcode,
        copies=instruction.operation in opcodes.COPIES,
        commits=instruction.operation == "LDGDEPBAR",
        groups=_groups(instruction),
    )


def _pipe(instruction: Instruction, machine: MachineConfig) -> tuple[int, int, int]:
    """The pipe's number, the cycles that the instruction occupies it, and the cycles until its result is there."""
    if "MMA" in instruction.operation:
        return 1, machine.matrix, 0
    if instruction.operation in opcodes.SHARED_LOADS | opcodes.SHARED_STORES:
        return 2, machine.shared, machine.shared_latency
    if instruction.operation in opcodes.COPIES | opcodes.GLOBAL_LOADS | opcodes.GLOBAL_STORES:
        return 3, machine.copy, machine.copy_latency
    return 0, 0, machine.other_latency


def _groups(instruction: Instruction) -> int | None:
    """How many groups of asynchronous copies may stay pending after a DEPBAR.LE; None for other instructions."""
    if instruction.operation != "DEPBAR" or ".LE" not in instruction.opcode:
        return None
    count = instruction.operands.split(",")[1].strip() if "," in instruction.operands else ""
    return int(count, 16) if count.startswith("0x") else None


class _Warp:
    """The state of one warp: its position, when it may issue, when its barriers are at zero, its groups of copies."""

    __slots__ = ("at", "copied", "falls", "groups", "met", "ready", "there")

    def __init__(self) -> None:
        self.at, self.ready, self.copied, self.met, self.there = 0, 0, 0, 0, False
        self.falls = [0] * 8
        self.groups: list[int] = []


class _Scheduler:
    """What the warps share: busy pipes and barriers of the block."""

    def __init__(self, steps: Sequence[_Step], machine: MachineConfig) -> None:
        self.steps, self.end = steps, len(steps) * machine.iterations
        self.warps = [_Warp() for _ in range(machine.warps)]
        self.free = [0] * PIPES
        self.meetings = [list[int]() for _ in range(1 + sum(step.meets for step in steps) * machine.iterations)]

    def run(self) -> int:
        """Issues all instructions, always the one that can issue first; among several, the last one's `yield` decides
        which warp is next. Returns the cycle in which the last one has issued."""
        now, turn, count = 0, 0, len(self.warps)
        while True:
            chosen, best = -1, 0
            for offset in range(count):
                number = (turn + offset) % count
                when = self._when(self.warps[number])
                if when is not None and (chosen < 0 or max(when, now) < best):
                    chosen, best = number, max(when, now)
            if chosen < 0:
                return now
            stays = self._issue(self.warps[chosen], best)
            now, turn = best + 1, chosen if stays else chosen + 1

    def _when(self, warp: _Warp) -> int | None:
        """The first cycle in which a warp's next instruction can issue; None where it is done or waits for others."""
        if warp.at == self.end:
            return None
        step, when = self.steps[warp.at % len(self.steps)], warp.ready
        for barrier in step.waits:
            when = max(when, warp.falls[barrier])
        if step.pipe:
            when = max(when, self.free[step.pipe])
        if step.groups is not None and len(warp.groups) > step.groups:
            when = max(when, warp.groups[-step.groups - 1])
        if step.meets:
            meeting = self.meetings[warp.met]
            if not warp.there:
                warp.there = True
                meeting.append(when)
            return max(meeting) if len(meeting) == len(self.warps) else None
        return when

    def _issue(self, warp: _Warp, now: int) -> bool:
        """Issues a warp's next instruction; returns whether the warp keeps its turn."""
        step = self.steps[warp.at % len(self.steps)]
        warp.at, warp.ready = warp.at + 1, now + step.stall
        if step.pipe:
            self.free[step.pipe] = now + step.busy
        if step.writes != NO_BARRIER:
            warp.falls[step.writes] = max(warp.falls[step.writes], now + step.latency)
        if step.reads != NO_BARRIER:
            warp.falls[step.reads] = max(warp.falls[step.reads], now + min(step.latency, step.read_latency))
        if step.copies:
            warp.copied = now + step.latency
        if step.commits:
            warp.groups.append(warp.copied)
        if step.meets:
            warp.met, warp.there = warp.met + 1, False
        return step.stays
