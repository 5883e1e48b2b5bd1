"""Is a recorded CUDA kernel right, and how fast is it next to the baselines? The referee's side of both."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from cudal2 import operators
from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status, Timing
from cudal2.worker import inputs, measurement, timing
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import device, pairing, plan
from cudal2.worker.cuda.memory import SharedMemory
from cudal2.worker.cuda.pairing import HostRun, Replay, TimingContext, gap_seconds, host_calls, pair, pair_on_host
from cudal2.worker.cuda.session import FULL, NO_ROOM, Runner, Runners
from cudal2.worker.cuda.vendor import LAYOUTS, split
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.side import BaselineSide, Mirror
from cudal2.worker.gpu.arena import Arena, check_calls
from cudal2.worker.gpu.buffers import ROTATED, buffer_layout
from cudal2.worker.gpu.history import History
from cudal2.worker.outcome import Allowance, CandidateFailed, Clock, Outcome
from cudal2.worker.sandbox import jail

ARENAS = 4
HOST_AHEAD = 0.5
"""Share of a call's seconds on the device's clock that it takes on the host's at least, launch and wait included."""
HOST_BLOCKS = 5
"""Blocks of calls that a baseline's figure on the host's clock is the median of."""
SUSPECT = (Status.TIMEOUT, Status.LAUNCH_ERROR, Status.OUT_OF_BOUNDS)
"""After these the GPU is asked whether it still computes."""
ROOM = 2 << 30
"""Bytes of the GPU's memory that a kernel may expect beside its buffers, for its code and its threads' stacks."""


class ProblemContext(msgspec.Struct, frozen=True):
    """One problem's buffers, the baselines' side of them, and seconds a call of each baseline, also in each round."""

    memory: SharedMemory
    arena: Arena
    baseline: BaselineSide
    seconds: dict[str, float]
    host_seconds: dict[tuple[str, str], float]
    """On the host's clock by protocol and baseline, as far as they were asked for."""
    rounds: Mapping[str, Sequence[float]] = {}

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
        self._contexts: OrderedDict[tuple[Problem, int], ProblemContext] = OrderedDict()
        self._order = np.random.default_rng()

    def close(self) -> None:
        self.runners.close()
        while self._contexts:
            self._contexts.popitem()[1].memory.close()

    def judge(self, recording: plan.Recording, cubin: bytes, problem: Problem, recipe: bytes = b"") -> Outcome:
        """Check a recorded launcher on fresh inputs, then time it. HarnessFault only where the harness fails.

        Where there is a `recipe`, calls that are timed on the host's clock are launched as those of an exported kernel.
        """
        clock = Clock()
        context = self.context(problem)
        context.arena.restore()
        clock.lap("baselines")
        found = Outcome(Status.OK)
        runner = self.runners.take(recording.base)
        clock.lap("start")
        runner.seconds, runner.allowance = self.config.run_seconds, Allowance(self.config.verdict_seconds)
        workspace = -(-recording.workspace // 2) * 2
        try:
            buffers = context.arena.buffers
            places = buffers.places(recording.base) if recipe else ()
            packed = plan.pack(recording, cubin, buffers.workspace, recipe, places)
            runner.load(packed, context.memory.fd, buffers.bytes)
            clock.lap("load")
            found, guess = check_calls(runner.run, context.arena, workspace, self.device.target.rounding)
            clock.lap("verify")
            timings = self._time(runner, guess, context, workspace) if self.config.protocols else ()
            clock.lap("time")
            return msgspec.structs.replace(found, timings=timings, seconds=clock.laps)
        except CandidateFailed as failed:
            runner.close()
            blame(failed)
            if failed.status in SUSPECT:
                self.probe()
            clock.lap("failed")
            return failed.outcome(found, clock.laps)
        except (torch.AcceleratorError, torch.OutOfMemoryError) as error:
            raise fault(error) from error
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

    def _time(self, runner: Runner, guess: float, context: ProblemContext, workspace: int) -> tuple[Timing, ...]:
        """Against the fastest baseline in pairs; the others follow from the baselines' own ratios."""
        arena, problem = context.arena, context.arena.problem

        def replay(history: History) -> tuple[float, float]:
            return runner.run(history.order, arena.touches(history))

        def host(history: History, gap: float) -> list[float]:
            return runner.host(history.order, gap, arena.touches(history))

        floor = self.device.floor(problem.flop, operators.nbytes(problem))
        paired = measurement.plausible(self._pair(replay, guess, context, workspace, context.best), floor)
        timings = [paired, *timing.derived(paired, context.seconds, context.rounds)]
        floor = max(floor, HOST_AHEAD * paired.candidate_us / 1e6)
        for protocol in self.config.protocols:
            if protocol != "device":
                for name in self._on_host(context):
                    found = self._pair_on_host(host, context, workspace, name, protocol)
                    timings.append(measurement.plausible(found, floor))
        return tuple(timings)

    def _pair(self, run: Replay, guess: float, context: ProblemContext, workspace: int, name: str) -> Timing:
        """Against this baseline on the device's clock. Raises CandidateFailed, HarnessFault."""
        alone, timed = context.seconds[name], self._timing_context(context)
        return measurement.undisturbed(
            lambda: pair(run, guess, workspace, timed, name, alone), alone, self.config.disturbed
        )

    def _pair_on_host(self, host: HostRun, context: ProblemContext, workspace: int, name: str, protocol: str) -> Timing:
        """Against this baseline on the host's clock. Raises CandidateFailed, HarnessFault."""
        alone, timed = self._alone(context, name, protocol), self._timing_context(context)
        return measurement.undisturbed(
            lambda: pair_on_host(host, workspace, timed, name, protocol), alone, self.config.disturbed
        )

    def _alone(self, context: ProblemContext, name: str, protocol: str) -> float:
        """Seconds a call of a baseline on the host's clock with no candidate beside it, measured once."""
        key = (protocol, name)
        if key not in context.host_seconds:
            count, gap = host_calls(self.config, context.arena.buffers), gap_seconds(self.config, protocol)
            context.baseline.lay(split(name)[1], slice(None))
            blocks = [context.baseline.host_seconds_untouched(name, count, gap) for _ in range(HOST_BLOCKS)]
            context.baseline.lay(context.arena.problem.layout, slice(None))
            context.host_seconds[key] = float(np.median(blocks)) / count
        return context.host_seconds[key]

    def _on_host(self, context: ProblemContext, layouts: Sequence[str] = LAYOUTS) -> list[str]:
        """The fastest of these layouts of each library that is called from C, the fastest library first;
        torch.matmul's Python call has no like here.

        Raises ValueError where the operator has none: no library calls it from C.
        """
        offered = [name for name in context.seconds if split(name)[1] in layouts]
        libraries = {split(name)[0] for name in offered} - {"torch"}
        if not libraries:
            epilogue = context.arena.problem.epilogue
            raise ValueError(
                f"epilogue {epilogue} has no baseline that is called from C, as offline and server compare: "
                "choose worker.protocols=[device]"
            )
        sides = [[name for name in offered if split(name)[0] == library] for library in libraries]
        return sorted((min(names, key=context.seconds.__getitem__) for names in sides), key=context.seconds.__getitem__)

    def _timing_context(self, context: ProblemContext) -> TimingContext:
        rounding, touch = self.device.target.rounding, self.vendor.touch_seconds
        return TimingContext(context.arena, context.baseline, self.config, self._order, rounding, touch)

    def compare_baseline_with_itself(self, problem: Problem, protocol: str = "device") -> Timing:
        """A/A: the best baseline that reads what a candidate reads, in another process, timed as a candidate would be.

        One for another layout would read copies, made just before in that process alone: they would still lie in the
        L2. On the host's clock it is the best that is called from C. Raises ValueError for an unknown protocol, or
        where there is none.
        """
        _check_protocol(protocol)
        context = self.context(problem)
        context.arena.restore()
        if protocol == "device":
            own = [name for name in context.seconds if split(name)[1] == problem.layout]
            name = min(own, key=context.seconds.__getitem__)
        else:
            name = self._on_host(context, (problem.layout,))[0]
        with Mirror(name, context.memory, context.arena.buffers, self._cache) as mirror:
            if protocol != "device":
                return self._pair_on_host(mirror.host, context, 0, name, protocol)
            return self._pair(mirror.run, context.seconds[name], context, 0, name)

    def baseline_seconds(self, problem: Problem) -> dict[str, float]:
        """Seconds a call of every baseline on the device's clock, by name."""
        return self.context(problem).seconds

    def read_floor(self, problem: Problem) -> timing.ReadFloor:
        """How long only reading the operands takes, beside the baselines. Raises ValueError where nothing is timed."""
        context = self.context(problem)
        if not context.seconds:
            raise ValueError("worker.protocols=[] times nothing; leave it out")
        return pairing.read_floor(self._timing_context(context), list(context.seconds))

    def host_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        """Seconds a call of every baseline on the host's clock, the median of a few blocks: `offline`, or `server` with
        idle gaps. Raises ValueError for another protocol.
        """
        _check_protocol(protocol)
        context = self.context(problem)
        return {name: self._alone(context, name, protocol) for name in context.seconds}

    def context(self, problem: Problem, rotated: int = ROTATED) -> ProblemContext:
        """The problem's buffers, of `rotated` bytes of matrices, and baselines, made on first use; the longest unused
        give way.
        """
        key = problem, rotated
        if key not in self._contexts:
            while len(self._contexts) >= ARENAS:
                self._contexts.popitem(last=False)[1].memory.close()
            torch.cuda.empty_cache()
            self._contexts[key] = self._make_context(problem, rotated)
        self._contexts.move_to_end(key)
        return self._contexts[key]

    def _make_context(self, problem: Problem, rotated: int) -> ProblemContext:
        buffers = buffer_layout(problem, rotated)
        memory = SharedMemory(buffers.bytes)
        try:
            arena = Arena(buffers, memory.tensor, inputs.generator(memory.tensor.device))
            arena.fill(slice(None))
            side = BaselineSide(self.vendor, buffers, arena.given, arena.reference, originals=arena.inputs)
            if not self.config.protocols:
                return ProblemContext(memory, arena, side, {}, {})
            for operand in arena.given:  # B is read in both layouts at once: uneven numbers might overflow in the other
                inputs.fill_normal(inputs.generator(operand.device), operand)
            tuning = self.vendor.prepare(problem, side.sets)
            arena.restore()
            return ProblemContext(memory, arena, side, tuning.seconds, {}, tuning.rounds)
        except torch.OutOfMemoryError as error:
            memory.close()
            raise HarnessFault(f"the GPU has no room for {problem.name}", "Free its memory, or leave it out") from error


def blame(failed: CandidateFailed) -> None:
    """Raises HarnessFault where a candidate failed for want of memory, and the GPU is full without it, too."""
    if NO_ROOM in failed.reason and torch.cuda.mem_get_info()[0] < ROOM:
        raise HarnessFault(f"there was no room for a kernel: {failed.reason}", FULL) from failed


def fault(error: Exception) -> HarnessFault:
    """What to raise where torch failed on the GPU."""
    remedy = FULL if isinstance(error, torch.OutOfMemoryError) else "Restart; look at it with nvidia-smi"
    return HarnessFault(f"the GPU failed: {error}", remedy)


def _check_protocol(protocol: str) -> None:
    if protocol not in ("device", "offline", "server"):
        raise ValueError(f"protocol {protocol!r} is not known; choose device, offline or server")
