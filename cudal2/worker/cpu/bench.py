"""Is a built CPU kernel right, and how fast is it next to torch.matmul? The parent's side of both questions."""

from collections import OrderedDict
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status, Timing
from cudal2.target import CPU
from cudal2.worker import inputs, timing, verify
from cudal2.worker.cpu.arena import PACKED_LIMIT, Arena
from cudal2.worker.cpu.baselines import NAMES, ONE_THREAD, Baselines
from cudal2.worker.cpu.pairing import Stage, fastest_seconds, pair, threads
from cudal2.worker.cpu.session import Side, start_candidate
from cudal2.worker.cpu.workspace import Workspace
from cudal2.worker.outcome import CandidateFailed, Clock, Outcome, derived, raise_finding
from cudal2.worker.sandbox import jail

POOL = 1 << 20, 4 << 20
"""Fewest and most normals that timed inputs are cut from, at places drawn anew for every batch."""
FLOOR_FLOPS, FLOOR_BYTES = 4e11, 4e11
"""No processor core does more FLOP/s, no memory moves more bytes/s: a time below this is not a time."""
LARGE_FLOP = 1e9
"""A reference of more work than this is worth several threads."""
ARENAS = 8
ROUNDS, SAME = 5, 1.1
"""Further rounds of measuring the baselines alone, at most; the factor within which two figures are the same."""
STARVED = 6
"""So many times `worker.disturbed`, about ten in all, a library is slower on all threads than on one only where other
programs have the processors."""


class CpuBench:
    """Owns the buffers and the baselines' process; judges one kernel at a time."""

    def __init__(self, config: WorkerConfig, kind: jail.Kind, threads: int, runner: Path) -> None:
        self.config, self.kind, self.threads, self.runner = config, kind, threads, runner
        self._arenas: OrderedDict[Problem, Arena] = OrderedDict()
        self._baselines: Baselines | None = None
        self._known: dict[Problem, dict[str, float]] = {}

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
        checks: dict = {}
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
            )
            clock.lap("start")
            checks = self._verify(side, arena, room)
            clock.lap("verify")
            timings = self._time(side, arena, room) if self.config.protocols else ()
            clock.lap("time")
            return Outcome(Status.OK, timings=timings, seconds=clock.laps, **checks)
        except CandidateFailed as failed:
            clock.lap("failed")
            return Outcome(failed.status, failed.reason, seconds=clock.laps, **checks)
        finally:
            if side:
                side.close()
            room.close()

    @threads(1)
    def _verify(self, side: Side, arena: Arena, room: Workspace) -> dict:
        """Normals, integers, wide integers, and the normals again; raises CandidateFailed."""
        problem, rng = arena.problem, inputs.generator()
        normal = inputs.normal(rng, problem)
        exact = self._reference(normal, problem)
        first = self._run_on(side, arena, 0, normal, room)
        found, rho, error = verify.check_normal(first, exact, problem, CPU.rounding)
        raise_finding(found)
        for slot, make, name in (
            (1, inputs.exact_integers, "small integers"),
            (0, inputs.wide_integers, "11-bit integers"),
        ):
            data = make(rng, problem)
            result = self._run_on(side, arena, slot, data, room)
            raise_finding(verify.check_exact(result, self._reference(data, problem), name))
        again = self._run_on(side, arena, 1, normal, room)
        raise_finding(verify.check_normal(again, exact, problem, CPU.rounding)[0])
        return {"rho": rho, "max_error": error, "repeatable": torch.equal(first, again)}

    def _reference(self, data: tuple[Tensor, Tensor], problem: Problem) -> Tensor:
        with threads(self.threads if problem.flop > LARGE_FLOP else 1):
            return verify.reference(*data, problem)

    def _run_on(self, side: Side, arena: Arena, slot: int, data, room: Workspace) -> Tensor:
        """One call in a guarded slot on poisoned C and workspace; returns a copy of C."""
        for matrix, values in zip((arena.a(slot), arena.b(slot)), data):
            matrix.copy_(values)
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
        """Against the fastest baseline in pairs; the others follow from the baselines' own ratios."""
        for _ in range(timing.TRIES):
            known = self.baseline_seconds(arena.problem)
            best = min(known, key=known.__getitem__)
            paired = self._pair(side, arena, best, known[best])
            if SAME * paired.baseline_us >= known[best] * 1e6:
                break
            del self._known[arena.problem]  # measured in a slow phase of the machine: another one may be the best
        self._check_bands(arena, room)
        floor = max(arena.problem.flop / (FLOOR_FLOPS * self.threads), arena.problem.bytes / FLOOR_BYTES)
        if paired.candidate_us < floor * 1e6:
            raise CandidateFailed(Status.IMPLAUSIBLE, f"{paired.candidate_us:.3g} µs is below what is possible")
        return (
            paired,
            *(derived(paired, name, known[name] / known[best]) for name in known if name != best),
        )

    def _pair(self, side: Side, arena: Arena, name: str, alone: float) -> Timing:
        vendor, stage = self._vendor(arena, name), self._stage(arena)
        return timing.undisturbed(lambda: pair(side, vendor, stage, name, alone), alone, self.config.disturbed)

    def _vendor(self, arena: Arena, name: str) -> Side:
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
            for name in NAMES:  # what the first one has been through: its memory lies where it does because of it
                fastest_seconds(twin.use(arena, name), self._stage(arena))
            return pair(twin.use(arena, best), self._vendor(arena, best), self._stage(arena), best, known[best])
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

        Again where threads wait for one another on busy processors: every call is slow then, round after round.
        """
        most = STARVED * self.config.disturbed
        for _ in range(timing.TRIES):
            found = self._in_rounds(arena)
            if self.threads == 1 or arena.problem.flop > LARGE_FLOP:
                return found
            if min(found.values()) <= most * self._baseline_alone(arena, ONE_THREAD):
                return found
        said = f"torch.matmul is {most:.0f} times slower on {self.threads} threads than on one"
        raise HarnessFault(f"the machine is too busy to time: {said}", timing.BUSY)

    def _in_rounds(self, arena: Arena) -> dict[str, float]:
        seen: dict[str, list[float]] = {}
        hopeless: dict[str, float] = {}
        for name in NAMES:
            hope = self._projected(arena.problem, name) if seen else 0.0
            if hope > 0.1 and hope > 20 * min(map(min, seen.values())):
                hopeless[name] = hope
            else:
                seen[name] = [self._baseline_alone(arena, name)]
        for _ in range(ROUNDS):
            for name, times in seen.items():
                times.append(self._baseline_alone(arena, name))
            if all(sorted(times)[1] <= SAME * min(times) for times in seen.values()):
                break
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
        return fastest_seconds(self._vendor(arena, name), self._stage(arena))

    def _stage(self, arena: Arena) -> Stage:
        """With normals that no earlier candidate has seen."""
        low, high = POOL
        largest = max(arena.a(0).numel(), arena.b(0).numel())
        pool = torch.empty(min(high, max(low, 4 * largest)), dtype=torch.float16)
        inputs.fill_normal(inputs.generator(), pool)
        return Stage(arena, pool, self.config)

    def _arena(self, problem: Problem) -> Arena:
        if problem not in self._arenas:
            large = problem.bytes > PACKED_LIMIT
            while len(self._arenas) >= (1 if large else ARENAS):
                self._arenas.popitem(last=False)[1].close()
            self._arenas[problem] = Arena(problem)
        self._arenas.move_to_end(problem)
        return self._arenas[problem]
