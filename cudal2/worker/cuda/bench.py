"""Is a recorded CUDA kernel right, and how fast is it next to the vendor's libraries? The referee's side of both."""

from collections import OrderedDict

import msgspec
import numpy as np
import torch

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status, Timing
from cudal2.worker import inputs, timing
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import device, plan
from cudal2.worker.cuda.arena import Arena
from cudal2.worker.cuda.checking import Run, check_calls
from cudal2.worker.cuda.layout import layout
from cudal2.worker.cuda.memory import SharedMemory
from cudal2.worker.cuda.pairing import HostRun, Stage, VendorSide, gap_seconds, host_calls, pair, pair_on_host
from cudal2.worker.cuda.session import Runner, Runners
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.mirror import Mirror
from cudal2.worker.cuda.vendor.names import split
from cudal2.worker.outcome import CandidateFailed, Clock, Outcome, derived
from cudal2.worker.sandbox import jail

ARENAS = 4
HOST_AHEAD = 0.5
"""Share of a call's seconds on the device's clock that it takes on the host's at least, launch and wait included."""
HOST_BLOCKS = 5
"""Blocks of calls that a baseline's figure on the host's clock is the median of."""
SUSPECT = (Status.TIMEOUT, Status.LAUNCH_ERROR, Status.OUT_OF_BOUNDS)
"""After these the GPU is asked whether it still computes."""


class Table(msgspec.Struct, frozen=True):
    """One problem's buffers, the vendor's side of them, and seconds a call of each baseline."""

    memory: SharedMemory
    arena: Arena
    vendor: VendorSide
    seconds: dict[str, float]
    host_seconds: dict[tuple[str, str], float]
    """On the host's clock by protocol and baseline, as far as they were asked for."""

    @property
    def best(self) -> str:
        return min(self.seconds, key=self.seconds.__getitem__)


class CudaBench:
    """Owns the GPU's buffers, the vendor's handles and the spare runner; judges one kernel at a time.

    No code of a candidate runs in this process, on the host or on the device.
    """

    def __init__(self, config: WorkerConfig, kind: jail.Kind, cache: Cache) -> None:
        self.config, self.device = config, device.find()
        self.vendor = Vendor(0, cache)
        self.runners = Runners(kind)
        self._cache = cache
        self._tables: OrderedDict[Problem, Table] = OrderedDict()
        self._order = np.random.default_rng()

    def close(self) -> None:
        self.runners.close()
        while self._tables:
            self._tables.popitem()[1].memory.close()

    def judge(self, recording: plan.Recording, cubin: bytes, problem: Problem) -> Outcome:
        """Check a recorded launcher on fresh inputs, then time it. HarnessFault only where the harness fails."""
        clock = Clock()
        table = self.table(problem)
        table.arena.restore()
        clock.lap("baselines")
        checks: dict = {}
        runner = self.runners.take()
        clock.lap("start")
        runner.seconds = self.config.run_seconds
        workspace = -(-recording.workspace // 2) * 2
        try:
            packed = plan.pack(recording, cubin, table.arena.layout.workspace)
            runner.load(packed, table.memory.fd, table.arena.layout.bytes)
            clock.lap("load")
            checks, guess = check_calls(runner.run, table.arena, workspace, self.device.target.rounding)
            clock.lap("verify")
            timings = self._time(runner, guess, table, workspace) if self.config.protocols else ()
            clock.lap("time")
            return Outcome(Status.OK, timings=timings, seconds=clock.laps, **checks)
        except CandidateFailed as failed:
            runner.close()
            if failed.status in SUSPECT:
                self.probe()
            clock.lap("failed")
            return Outcome(failed.status, failed.reason, seconds=clock.laps, **checks)
        except (torch.AcceleratorError, torch.OutOfMemoryError) as error:
            raise HarnessFault(f"the GPU failed: {error}", "Restart; look at it with nvidia-smi") from error
        finally:
            runner.close()

    def probe(self) -> None:
        """Whether the GPU still computes, after a candidate that may have harmed it. Raises HarnessFault."""
        try:
            a = torch.randint(-8, 9, (256, 256), device="cuda").half()
            exact = (a.double() @ a.double()).half()
            healthy = torch.equal(a @ a, exact)
        except RuntimeError as error:
            raise HarnessFault(f"the GPU does not answer any more: {error}", "Look at it with nvidia-smi") from error
        if not healthy:
            raise HarnessFault("the GPU computes wrong results", "Look at it with nvidia-smi")

    def _time(self, runner: Runner, guess: float, table: Table, workspace: int) -> tuple[Timing, ...]:
        """Against the fastest baseline in pairs; the others follow from the baselines' own ratios."""
        problem, best = table.arena.problem, table.best
        floor = self.device.floor(problem.flop, problem.bytes)
        paired = _plausible(self._pair(runner.run, guess, table, workspace), floor)
        others = sorted((seconds, name) for name, seconds in table.seconds.items() if name != best)
        timings = [paired, *(derived(paired, name, seconds / table.seconds[best]) for seconds, name in others)]
        floor = max(floor, HOST_AHEAD * paired.candidate_us / 1e6)
        for protocol in self.config.protocols:
            if protocol != "device":
                for name in self._on_host(table):
                    found = self._pair_on_host(runner.host, table, workspace, name, protocol)
                    timings.append(_plausible(found, floor))
        return tuple(timings)

    def _pair(self, run: Run, guess: float, table: Table, workspace: int) -> Timing:
        """Against the best baseline on the device's clock. Raises CandidateFailed, HarnessFault."""
        alone, stage = table.seconds[table.best], self._stage(table)
        return timing.undisturbed(
            lambda: pair(run, guess, workspace, stage, table.best, alone), alone, self.config.disturbed
        )

    def _pair_on_host(self, host: HostRun, table: Table, workspace: int, name: str, protocol: str) -> Timing:
        """Against this baseline on the host's clock. Raises CandidateFailed, HarnessFault."""
        alone, stage = self._alone(table, name, protocol), self._stage(table)
        return timing.undisturbed(
            lambda: pair_on_host(host, workspace, stage, name, protocol), alone, self.config.disturbed
        )

    def _alone(self, table: Table, name: str, protocol: str) -> float:
        """Seconds a call of a baseline on the host's clock with no candidate beside it, measured once."""
        key = (protocol, name)
        if key not in table.host_seconds:
            window = slice(0, host_calls(self.config, table.arena.layout))
            gap = gap_seconds(self.config, protocol)
            blocks = [table.vendor.host_seconds(name, window, gap) for _ in range(HOST_BLOCKS)]
            table.host_seconds[key] = float(np.median(blocks)) / window.stop
        return table.host_seconds[key]

    def _on_host(self, table: Table) -> list[str]:
        """The faster layout of each library that is called from C; torch.matmul's Python call has no like here."""
        libraries = {split(name)[0] for name in table.seconds} - {"torch"}
        sides = [[name for name in table.seconds if split(name)[0] == library] for library in libraries]
        return sorted((min(names, key=table.seconds.__getitem__) for names in sides), key=table.seconds.__getitem__)

    def _stage(self, table: Table) -> Stage:
        return Stage(table.arena, table.vendor, self.config, self._order, self.device.target.rounding)

    def compare_baseline_with_itself(self, problem: Problem, protocol: str = "device") -> Timing:
        """A/A: the best baseline, in another process on the shared buffers, timed as a candidate would be.

        On the host's clock it is the best that is called from C. Raises ValueError for an unknown protocol.
        """
        _check_protocol(protocol)
        table = self.table(problem)
        table.arena.restore()
        name = table.best if protocol == "device" else self._on_host(table)[0]
        with Mirror(name, table.memory, table.arena.layout, self._cache) as mirror:
            if protocol != "device":
                return self._pair_on_host(mirror.host, table, 0, name, protocol)
            return self._pair(mirror.run, table.seconds[name], table, 0)

    def baseline_seconds(self, problem: Problem) -> dict[str, float]:
        """Seconds a call of every baseline on the device's clock, by name."""
        return self.table(problem).seconds

    def host_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        """Seconds a call of every baseline on the host's clock, the median of a few blocks: `offline`, or `server` with
        idle gaps. Raises ValueError for another protocol.
        """
        _check_protocol(protocol)
        table = self.table(problem)
        return {name: self._alone(table, name, protocol) for name in table.seconds}

    def table(self, problem: Problem) -> Table:
        """The problem's buffers and baselines, made on first use; the longest unused give way."""
        if problem not in self._tables:
            while len(self._tables) >= ARENAS:
                self._tables.popitem(last=False)[1].memory.close()
            torch.cuda.empty_cache()
            self._tables[problem] = self._make_table(problem)
        self._tables.move_to_end(problem)
        return self._tables[problem]

    def _make_table(self, problem: Problem) -> Table:
        place = layout(problem)
        memory = SharedMemory(place.bytes)
        try:
            arena = Arena(place, memory.tensor, inputs.generator(memory.tensor.device))
            arena.fill(slice(None))
            side = VendorSide(self.vendor, place, *arena.inputs, arena.reference)
            seconds = self.vendor.prepare(problem, side.sets) if self.config.protocols else {}
            return Table(memory, arena, side, seconds, {})
        except torch.OutOfMemoryError as error:
            memory.close()
            raise HarnessFault(f"the GPU has no room for {problem.name}", "Free its memory, or leave it out") from error


def _plausible(found: Timing, floor: float) -> Timing:
    """What was found, where it is not below `floor` seconds a call. Raises CandidateFailed."""
    if found.candidate_us < floor * 1e6:
        raise CandidateFailed(Status.IMPLAUSIBLE, f"{found.candidate_us:.3g} µs is below what is possible")
    return found


def _check_protocol(protocol: str) -> None:
    if protocol not in ("device", "offline", "server"):
        raise ValueError(f"protocol {protocol!r} is not known; choose device, offline or server")
