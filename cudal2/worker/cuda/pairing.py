"""A candidate's replay and a baseline of the vendor's libraries on equal inputs: the two sides on a GPU.

Both sides run graphs over the same sets in a window, behind a short spin on the device, so that neither pays for its
launch. They sit in two processes: the candidate's replay sees the shared buffers, the baseline's calls see private
copies of the same inputs, and their results are the reference for the candidate's.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.records import Status, Timing
from cudal2.worker import timing, verify
from cudal2.worker.cuda import changes
from cudal2.worker.cuda.arena import Arena
from cudal2.worker.cuda.buffers import BufferLayout, Perturbation
from cudal2.worker.cuda.checking import Run
from cudal2.worker.cuda.vendor.names import split
from cudal2.worker.cuda.vendor.side import BaselineSide
from cudal2.worker.measurement import Batch, Role, Sides, measure
from cudal2.worker.outcome import CandidateFailed, raise_finding

CLOCKS_DIFFER = 0.5e-3
"""Seconds of a replay that the host's clock may see beyond the device's."""
SECOND_LOOKS = 20
"""Replays more before the clocks are said to differ: a host with much else to do is called away in most of a few."""

HostRun = Callable[[Sequence[int], float, Sequence[Perturbation]], list[float]]
"""Calls sets one by one with mean gaps of so many seconds, each behind a perturbation where there are any; seconds of
each call on the host's clock."""


def gap_seconds(config: WorkerConfig, protocol: str) -> float:
    """Mean seconds between two calls of a host-timed protocol."""
    return 1 / config.server_qps if protocol == "server" else 0.0


def host_calls(config: WorkerConfig, buffers: BufferLayout) -> int:
    """Calls in a block of a host-timed protocol, each on a set of its own."""
    return min(config.host_calls, buffers.sets)


class TimingContext(msgspec.Struct, frozen=True):
    """Where the two sides meet: the buffers, the baselines, how long to measure, how f16 accumulators round."""

    arena: Arena
    baseline: BaselineSide
    config: WorkerConfig
    rng: np.random.Generator
    rounding: int

    def prepare(self, window: slice, name: str, workspace: int) -> None:
        """Fresh inputs for both sides, every output and the workspace poisoned."""
        self.arena.fill(window)
        self.baseline.refresh(split(name)[1], window)
        self.arena.poison(workspace)

    def order(self, window: slice) -> list[int]:
        """The sets of a window as the candidate meets them: another order each time, lest it knows what comes next."""
        return (window.start + self.rng.permutation(window.stop - window.start)).tolist()

    def perturb(self, order: Sequence[int], window: slice, name: str) -> list[Perturbation]:
        """A change of the inputs of each of these sets, which the baseline's have undergone."""
        found = self.arena.perturb(order)
        self.baseline.refresh(split(name)[1], window)  # its A is another copy where it wants B otherwise
        return found

    def check(self, window: slice, workspace: int) -> None:
        """What the candidate left beside the outputs of a window. Raises CandidateFailed."""
        if not self.arena.inputs_intact():
            raise CandidateFailed(Status.WRONG, "in timed calls an input was changed")
        if not self.arena.others_unwritten(window):
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "a timed call wrote to the output of another")
        if said := self.arena.guard_finding():
            raise CandidateFailed(Status.OUT_OF_BOUNDS, f"a timed call {said}")
        if said := self.arena.workspace_finding(workspace):
            raise CandidateFailed(Status.WRONG, f"a timed call {said}")

    def check_changes(self) -> None:
        """Whether the calls whose inputs `perturb` changed saw it. Raises CandidateFailed."""
        arena = self.arena
        for second, places in enumerate(arena.changed):
            lines = changes.lines(arena.problem, arena.c, self.baseline.c, *arena.inputs, bool(second), places)
            raise_finding(changes.check(*lines, arena.problem, self.rounding))

    def check_one(self, number: int) -> None:
        """One output of a window as strictly as those of single calls. Raises CandidateFailed."""
        arena = self.arena
        exact = verify.reference(arena.inputs[0][number], arena.inputs[1][number], arena.problem)
        raise_finding(verify.check_normal(arena.c[number], exact, arena.problem, self.rounding)[0])


class GpuSides(Sides):
    """Batches of `count` calls of either side.

    `candidate` takes the order of the sets and a perturbation for each, or none; `baseline` the window. Both give
    seconds of all the calls together.
    """

    warm_up = True  # graphs and libraries load at their first use
    perturbs_apart = True  # a perturbation is a kernel of its own between two of the candidate's

    def __init__(
        self,
        context: TimingContext,
        name: str,
        workspace: int,
        count: int,
        candidate: Callable[[Sequence[int], Sequence[Perturbation]], float],
        baseline: Callable[[slice], float],
    ) -> None:
        self.problem, self.rounding = context.arena.problem, context.rounding
        self.slots = range(context.arena.buffers.sets)
        self._context, self._name, self._workspace, self._count = context, name, workspace, count
        self._candidate, self._baseline = candidate, baseline
        self._order: list[int] = []
        self._perturbations: Sequence[Perturbation] = ()

    def calls(self, candidate: list[float], baseline: list[float]) -> tuple[int, int]:
        return self._count, self._count

    def fill(self, batch: Batch) -> None:
        """Poisons too: the sides write to memory of their own, so that one need not wait for the other's results, and
        whichever goes first, what lies in the caches was put there for both."""
        context, window = self._context, batch.window
        context.prepare(window, self._name, self._workspace)
        self._order = context.order(window)
        self._perturbations = context.perturb(self._order, window, self._name) if batch.perturbed else ()

    def ready(self, role: Role, batch: Batch) -> None:
        self._context.arena.settle()

    def run(self, role: Role, batch: Batch) -> float:
        if role == "candidate":
            return self._candidate(self._order, self._perturbations) / self._count
        return self._baseline(batch.window) / self._count

    def outputs(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        context, window = self._context, batch.window
        context.check(window, self._workspace)
        if batch.perturbed:
            context.check_changes()
        return [(context.arena.c[window], context.baseline.c[window])]

    def look_closer(self, batch: Batch) -> None:
        """At a later call, which sees what those before it left."""
        self._context.check_one(int(self._context.rng.choice(self._order[1:] or self._order)))


def pair(
    candidate: Run, guess: float, workspace: int, context: TimingContext, name: str, baseline_guess: float
) -> Timing:
    """Time `candidate` (about `guess` seconds a call, `workspace` bytes) against baseline `name` on the device's clock.

    Raises CandidateFailed, also where the host's clock tells of longer replays than the device's.
    """
    config, sets = context.config, context.arena.buffers.sets
    count = timing.calls_for(max(guess, baseline_guess), config.batch_ms / 1e3, sets)
    replays: list[tuple[float, float]] = []  # seconds on the device's clock, and how many more the host's saw

    def replay(order: Sequence[int], perturbations: Sequence[Perturbation] = ()) -> float:
        seconds, host_seconds = candidate(order, perturbations)
        if not perturbations:
            replays.append((seconds, host_seconds - seconds))
        return seconds

    sides = GpuSides(context, name, workspace, count, replay, lambda window: context.baseline.run(name, window))
    found = measure(sides, config, name, "device")
    batch = count * found.candidate_us / 1e6
    allowed, most = max(CLOCKS_DIFFER, 0.25 * batch), 1.25 * batch

    def agree() -> bool:
        """Whether the clocks agree on some replay that was no slower than what is claimed."""
        return any(seconds <= most and more <= allowed for seconds, more in replays)

    window = slice(0, count)
    for _ in range(SECOND_LOOKS):
        if agree():
            break
        context.prepare(window, name, workspace)  # as ever, lest a second look be known for one
        context.arena.settle()
        replay(context.order(window))
    if not agree():
        raise CandidateFailed(Status.IMPLAUSIBLE, "the device's clock saw much less time pass than the host's")
    return found


def pair_on_host(host: HostRun, workspace: int, context: TimingContext, name: str, protocol: str) -> Timing:
    """Time single calls on the host's clock, in blocks of either side: `offline`, or `server` with idle gaps.

    What counts is a block's total: a call that did the others' work is in it. Raises CandidateFailed.
    """
    gap, count = gap_seconds(context.config, protocol), host_calls(context.config, context.arena.buffers)
    sides = GpuSides(
        context,
        name,
        workspace,
        count,
        lambda order, perturbations: sum(host(order, gap, perturbations)),
        lambda window: context.baseline.host_seconds(name, window, gap),
    )
    return measure(sides, context.config, name, protocol)
