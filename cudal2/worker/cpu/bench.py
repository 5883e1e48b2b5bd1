"""Is a built CPU kernel right, and how fast is it next to torch.matmul? The parent's side of both questions."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Status, Timing
from cudal2.target import CPU
from cudal2.worker import inputs, limits, measurement, outcome, timing, verify
from cudal2.worker.cpu.arena import GUARDED, PACKED_LIMIT, Arena
from cudal2.worker.cpu.baselines import FUSED, ONE_THREAD, Baselines, names
from cudal2.worker.cpu.candidate import Workspace, start_candidate
from cudal2.worker.cpu.context import TimingContext
from cudal2.worker.cpu.pairing import Refer, fastest_seconds, pair
from cudal2.worker.cpu.scheduling import threads
from cudal2.worker.cpu.session import Side
from cudal2.worker.outcome import Allowance, CandidateFailed, Clock, Outcome
from cudal2.worker.sandbox import jail

NORMALS = 1 << 20, 4 << 20
"""Fewest and most normals that timed inputs are cut from, at places drawn anew for every batch."""
FLOOR_FLOPS, FLOOR_BYTES = 4e11, 4e11
"""No processor core does more FLOP/s, no memory moves more bytes/s: a time below this is not a time."""
LARGE_FLOP = 1e9
"""A reference of more work than this is worth several threads."""
ARENAS = 8
ROUNDS, SAME = 5, 1.1
"""Further rounds of measuring the baselines alone, at most; the factor within which two figures are the same."""
AGAIN, HOPELESS = 3, 20
"""Batches of each baseline again where a candidate beats the fastest; what is so many times slower is left out."""
STARVED = 6
"""So many times `worker.disturbed`, about ten in all, a library is slower on all threads than on one only where other
programs have the processors."""


def floor_seconds(problem: Problem, threads: int) -> float:
    """Seconds that no call on so many cores undercuts."""
    return max(operators.flop(problem) / (FLOOR_FLOPS * threads), operators.nbytes(problem) / FLOOR_BYTES)


class CpuBench:
    """Owns the buffers and the baselines' process; judges one kernel at a time."""

    def __init__(self, config: WorkerConfig, kind: jail.Kind, threads: int, runner: Path) -> None:
        self.config, self.kind, self.threads, self.runner = config, kind, threads, runner
        self._arenas: OrderedDict[Problem, Arena] = OrderedDict()
        self._baselines: Baselines | None = None
        self._known: dict[Problem, dict[str, float]] = {}
        self._rounds: dict[Problem, dict[str, list[float]]] = {}

    def close(self) -> None:
        if self._baselines:
            self._baselines.close()
        for arena in self._arenas.values():
            arena.close()

    def judge(self, library: bytes, problem: Problem) -> Outcome:
        """Check a shared object on fresh inputs, then time it. HarnessFault only where the harness fails."""
        clock = Clock()
        arena = self._arena(problem)
        arena.wipe_outputs()
        room = Workspace()
        clock.lap("arena")
        found = Outcome(Status.OK)
        side = None
        try:
            side = start_candidate(
                library,
                arena,
                room,
                self.kind,
                self.runner,
                threads=self.threads,
                memory=self.config.memory_mib << 20,
                seconds=self.config.run_seconds,
                allowance=Allowance(self.config.verdict_seconds),
            )
            clock.lap("start")
            found = self._verify(side, arena, room)
            clock.lap("verify")
            timings = self._time(side, arena, room) if self.config.protocols else ()
            clock.lap("time")
            return msgspec.structs.replace(found, timings=timings, seconds=clock.laps)
        except CandidateFailed as failed:
            clock.lap("failed")
            return failed.outcome(found, clock.laps)
        finally:
            if side:
                side.close()
            room.close()

    @threads(1)
    def _verify(self, side: Side, arena: Arena, room: Workspace) -> Outcome:
        """`outcome.check` in the guarded slots in turn: one ends beside a guard page, the other begins there.

        Raises CandidateFailed.
        """
        slots = cycle(range(GUARDED))

        def run_on(given: Sequence[Tensor]) -> Tensor:
            return self._run_on(side, arena, next(slots), given, room)

        return outcome.check(run_on, arena.problem, inputs.generator(), CPU.rounding, self._reference)

    def _reference(self, given: Sequence[Tensor], problem: Problem) -> Tensor:
        with threads(self.threads if problem.flop > LARGE_FLOP else 1):
            return verify.reference(given, problem)

    def _run_on(self, side: Side, arena: Arena, slot: int, given: Sequence[Tensor], room: Workspace) -> Tensor:
        """One call in a guarded slot on poisoned C and workspace; returns a copy of C."""
        for place, values in zip(arena.given(slot), given):
            place.copy_(values)
        inputs.poison(arena.c(slot))
        room.poison()
        side.run(slot, 1)
        self._check_bands(arena, room)
        return arena.c(slot).clone()

    def _check_bands(self, arena: Arena, room: Workspace) -> None:
        if not arena.canaries_intact():
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "wrote beside the output")
        if room.overrun():
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "wrote beyond the workspace it asked for")

    def _time(self, side: Side, arena: Arena, room: Workspace) -> tuple[Timing, ...]:
        """Against the fastest baseline in pairs; the others follow from the baselines' own ratios. Raises Disturbed."""
        for _ in range(measurement.TRIES):
            known = self.baseline_seconds(arena.problem)
            best = min(known, key=known.__getitem__)
            paired = self._pair(side, arena, best, known[best])
            self._check_bands(arena, room)
            if SAME * paired.baseline_us >= known[best] * 1e6 and not self._outdone(arena, paired, known):
                break
            del self._known[arena.problem]  # measured in a slow phase of the machine: another one may be the best
        else:
            raise measurement.disturbed("which baseline is the fastest changes from one measurement to the next")
        measurement.plausible(paired, floor_seconds(arena.problem, self.threads))
        return (paired, *timing.derived(paired, known, self._rounds[arena.problem]))

    def _pair(self, side: Side, arena: Arena, name: str, alone: float) -> Timing:
        baseline, context, refer = self._baseline(arena, name), self._context(arena), self._refer(arena, name)

        def paired() -> Timing:
            return pair(side, baseline, context, name, alone, refer)

        return measurement.undisturbed(paired, alone, self.config.disturbed)

    def _outdone(self, arena: Arena, paired: Timing, known: dict[str, float]) -> bool:
        """Whether a baseline that a candidate was not paired with is faster now than the one it seems to beat."""
        near = [name for name in known if known[name] < HOPELESS * known[paired.baseline]]
        if paired.low <= 1 or len(near) == 1:
            return False
        context = self._context(arena)
        seconds = {name: fastest_seconds(self._baseline(arena, name), context, AGAIN) for name in near}
        return seconds[paired.baseline] > max(SAME, math.sqrt(self.config.disturbed)) * min(seconds.values())

    def _refer(self, arena: Arena, name: str) -> Refer | None:
        """The fused baseline, where the one of that name rounds before it finishes."""
        if name == FUSED or not limits.finishing(arena.problem):
            return None

        def refer(first: int, count: int) -> None:
            self._baseline(arena, FUSED).run(first, count)
            self._baseline(arena, name)

        return refer

    def _baseline(self, arena: Arena, name: str) -> Side:
        if self._baselines is None:
            self._baselines = Baselines(self.threads)
        return self._baselines.use(arena, name)

    def compare_baseline_with_itself(self, problem: Problem) -> Timing:
        """A/A: the fastest baseline, in a second process like the first, timed as if it were a candidate."""
        arena = self._arena(problem)
        known = self.baseline_seconds(arena.problem)
        best = min(known, key=known.__getitem__)
        twin = Baselines(self.threads)
        try:
            for name in names(
                problem
            ):  # what the first one has been through: its memory lies where it does because of it
                fastest_seconds(twin.use(arena, name), self._context(arena))
            return pair(twin.use(arena, best), self._baseline(arena, best), self._context(arena), best, known[best])
        finally:
            twin.close()

    def baseline_seconds(self, problem: Problem) -> dict[str, float]:
        """Seconds a call of every baseline on this problem at its best, measured once.

        A baseline that a small relative of the problem shows to be hopeless is projected from it. Raises HarnessFault
        where other programs keep the baselines' threads from running.
        """
        arena = self._arena(problem)
        if problem not in self._known:
            self._known[problem] = self._measured(arena)
        return self._known[problem]

    def _measured(self, arena: Arena) -> dict[str, float]:
        """The fastest of each, in rounds until it has been seen twice; a slow phase of the machine outlasts one round.

        Again where threads wait for one another on busy processors: every call is slow then, round after round. Raises
        Disturbed.
        """
        most = STARVED * self.config.disturbed

        def once() -> dict[str, float]:
            found = self._in_rounds(arena)
            alone = self.threads == 1 or arena.problem.flop > LARGE_FLOP
            if not alone and min(found.values()) > most * self._baseline_alone(arena, ONE_THREAD):
                raise measurement.disturbed(
                    f"torch.matmul is {most:.0f} times slower on {self.threads} threads than on one"
                )
            return found

        return measurement.tried(once)

    def _in_rounds(self, arena: Arena) -> dict[str, float]:
        seen: dict[str, list[float]] = {}
        hopeless: dict[str, float] = {}
        for name in names(arena.problem):
            hope = self._projected(arena.problem, name) if seen else 0.0
            if hope > 0.1 and hope > HOPELESS * min(map(min, seen.values())):
                hopeless[name] = hope
            else:
                seen[name] = [self._baseline_alone(arena, name)]
        for _ in range(ROUNDS):
            for name, times in seen.items():
                times.append(self._baseline_alone(arena, name))
            if all(sorted(times)[1] <= SAME * min(times) for times in seen.values()):
                break
        self._rounds[arena.problem] = seen
        return {name: min(times) for name, times in seen.items()} | hopeless

    def _projected(self, problem: Problem, name: str) -> float:
        small = msgspec.structs.replace(problem, m=min(problem.m, 128), n=min(problem.n, 128), k=min(problem.k, 512))
        if small == problem:
            return 0.0
        arena = Arena(small)
        try:
            return self._baseline_alone(arena, name) * problem.flop / small.flop
        finally:
            arena.close()

    def _baseline_alone(self, arena: Arena, name: str) -> float:
        return fastest_seconds(self._baseline(arena, name), self._context(arena))

    def _context(self, arena: Arena) -> TimingContext:
        """With normals that no earlier candidate has seen."""
        low, high = NORMALS
        largest, problem = max(tensor.numel() for tensor in arena.given(0)), arena.problem
        normals = torch.empty(min(high, max(low, 4 * largest)), dtype=inputs.element(problem))
        inputs.fill_normal(inputs.generator(), normals)
        inputs.keep_from_zero(normals, problem.type)
        return TimingContext(arena, normals, self.config)

    def _arena(self, problem: Problem) -> Arena:
        if problem not in self._arenas:
            large = operators.nbytes(problem) > PACKED_LIMIT
            while len(self._arenas) >= (1 if large else ARENAS):
                self._arenas.popitem(last=False)[1].close()
            self._arenas[problem] = Arena(problem)
        self._arenas.move_to_end(problem)
        return self._arenas[problem]
