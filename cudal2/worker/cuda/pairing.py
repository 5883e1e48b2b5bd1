"""A candidate's replay and a baseline of the vendor's libraries on equal inputs: the two sides on a GPU.

Both sides run a graph of the same calls in the same order, behind a short spin on the device, so that neither pays for
its launch, and both go through the same history (history.py). What its touches take is known and subtracted on either
side. How many calls a window has is drawn, so that no call is known to be the last. The two sit in two processes, and
find their inputs in the same memory: they are laid there before either's turn, and looked at after it (vendor/side.py).
The baseline's results, in memory of its own, are the reference for the candidate's. Kernels that only read are compared
under the same conditions.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.records import Status, Timing
from cudal2.worker import stale, timing
from cudal2.worker.cuda.vendor import split
from cudal2.worker.cuda.vendor.side import BaselineSide
from cudal2.worker.gpu import changes
from cudal2.worker.gpu.arena import Arena
from cudal2.worker.gpu.buffers import BufferLayout
from cudal2.worker.gpu.history import History, draw
from cudal2.worker.measurement import Batch, Role, Sides, measure
from cudal2.worker.outcome import CandidateFailed, check_closely, raise_finding

CLOCKS_DIFFER = 0.5e-3
"""Seconds of a replay that the host's clock may see beyond the device's."""
SMALL_FLOP = 2e10
"""Up to this much work the exact product of one call takes well below a millisecond."""
SECOND_LOOKS = 20
"""Replays more before the clocks are said to differ: a host with much else to do is called away in most of a few."""

SIEVE, FINALISTS, ROUNDS = 5, 3, 15
"""Of the read floor: rounds in which all launches are timed; how many go on; rounds in which these are timed beside the
baselines."""

LEAST = 1e-9
"""Seconds a call that are left at least where the touches' are subtracted; it is implausible then."""

Replay = Callable[[History], tuple[float, float]]
"""Replays a history's calls; seconds on the device's clock and on the host's."""
HostRun = Callable[[History, float], list[float]]
"""Makes a history's calls one by one with mean gaps of so many seconds; seconds of each on the host's clock."""


def untouched(seconds: float, history: History, touch: Mapping[int, float]) -> float:
    """Seconds of a history's calls without their touches: those of a call take so long, by how many there are."""
    return max(seconds - len(history.order) * touch[history.each], LEAST)


def gap_seconds(config: WorkerConfig, protocol: str) -> float:
    """Mean seconds between two calls of a host-timed protocol."""
    return 1 / config.server_qps if protocol == "server" else 0.0


def host_calls(config: WorkerConfig, buffers: BufferLayout) -> int:
    """The most calls in a block of a host-timed protocol, each on a set of its own."""
    return min(config.host_calls, buffers.sets)


class TimingContext(msgspec.Struct, frozen=True):
    """Where the two sides meet: the buffers, the baselines, how long to measure, how f16 accumulators round, and how
    many seconds the touches of a call add to a graph, by their number."""

    arena: Arena
    baseline: BaselineSide
    config: WorkerConfig
    rng: np.random.Generator
    rounding: int
    touch_seconds: Mapping[int, float]

    def prepare(self, window: slice, workspace: int) -> None:
        """Fresh inputs for both sides, every output and the workspace poisoned."""
        self.arena.fill(window)
        self.arena.poison(workspace)

    def order(self, window: slice) -> list[int]:
        """The sets of a window as they are called: another order each time, lest a call know what comes next."""
        return (window.start + self.rng.permutation(window.stop - window.start)).tolist()

    def history(self, window: slice) -> History:
        """What the calls on the sets of a window, whose inputs are fresh, will go through."""
        arena = self.arena
        return draw(self.order(window), arena.inputs, arena.powers, arena.problem, self.rng)

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

    def check_due(self, history: History) -> None:
        """Whether outputs were there when their calls were over. Raises CandidateFailed."""
        if late := self.arena.kept_late(history):
            said = f"{late} of {history.keeps.sum()} elements were others when their calls were over"
            raise CandidateFailed(Status.WRONG, f"in timed calls {said}")

    def check_changes(self, history: History) -> None:
        """Whether the calls whose inputs changed used what they should. Raises CandidateFailed."""
        arena = self.arena
        products = self.baseline.products
        for operand in range(len(arena.inputs)):
            moved = changes.lines(history, arena.problem, arena.c, self.baseline.c, arena.inputs, operand, products)
            raise_finding(stale.check(*moved, arena.problem, self.rounding))

    def check_one(self, number: int) -> None:
        """One output of a window as strictly as those of single calls. Raises CandidateFailed."""
        given = [operand[number] for operand in self.arena.inputs]
        check_closely(self.arena.c[number], given, self.arena.problem, self.rounding)


class GpuSides(Sides):
    """Batches of at most `most` calls of either side, each of which goes through a history of its own.

    `candidate` and `baseline` give seconds of all of a history's calls together.
    """

    warm_up = True  # graphs and libraries load at their first use

    def __init__(
        self,
        context: TimingContext,
        name: str,
        workspace: int,
        most: int,
        candidate: Callable[[History], float],
        baseline: Callable[[History], float],
    ) -> None:
        self.problem, self.rounding = context.arena.problem, context.rounding
        self._layouts: dict[Role, str] = {"candidate": self.problem.layout, "baseline": split(name)[1]}
        self.slots = range(context.arena.buffers.sets)
        self.looks_always = self.problem.flop <= SMALL_FLOP
        self._context, self._workspace, self._most = context, workspace, most
        self._run: dict[Role, Callable[[History], float]] = {"candidate": candidate, "baseline": baseline}
        self._history: History

    def calls(self, candidate: list[float], baseline: list[float]) -> tuple[int, int]:
        fewer = (self._most // 2 + 1) * self._context.rng.random() ** 2
        return self._most - int(fewer), self._most - int(fewer)

    def fill(self, batch: Batch) -> None:
        """Poisons too: the sides write to memory of their own, so that one need not wait for the other's results."""
        self._context.prepare(batch.window, self._workspace)
        self._history = self._context.history(batch.window)

    def ready(self, role: Role, batch: Batch) -> None:
        """Whichever goes first finds its inputs where the other does, and no more in the caches."""
        self._context.baseline.lay(self._layouts[role], batch.window)
        self._context.arena.settle()

    def run(self, role: Role, batch: Batch) -> float:
        """Raises CandidateFailed where anything but outputs is then not as the history left it."""
        context, window, seconds = self._context, batch.window, self._run[role](self._history)
        self._history.apply(context.arena.inputs)
        if role == "candidate":
            context.check_due(self._history)
            context.check(window, self._workspace)
        elif not context.baseline.unharmed(self._layouts[role], window):
            raise CandidateFailed(Status.WRONG, "an input was changed while the baseline ran")
        self._history.undo(context.arena.inputs)
        return seconds / batch.count

    def outputs(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        context, window = self._context, batch.window
        self._history.apply(context.arena.inputs)
        context.baseline.lay(self.problem.layout, window)
        context.baseline.restate(window)
        context.check_changes(self._history)
        return [(context.arena.c[window], context.baseline.c[window])]

    def look_closer(self, batch: Batch) -> None:
        """At a call, if possible a later one, which sees what those before it left."""
        order = self._history.order
        self._context.check_one(int(self._context.rng.choice(order[1:] or order)))


def pair(
    candidate: Replay, guess: float, workspace: int, context: TimingContext, name: str, baseline_guess: float
) -> Timing:
    """Time `candidate` (about `guess` seconds a call, `workspace` bytes) against baseline `name` on the device's clock.

    Raises CandidateFailed, also where the host's clock tells of longer replays than the device's.
    """
    config, arena, touch = context.config, context.arena, context.touch_seconds
    most = timing.calls_for(max(guess, baseline_guess), config.batch_ms / 1e3, arena.buffers.sets)
    replays: list[tuple[float, float]] = []  # seconds on the device's clock, and how many more the host's saw

    def replay(history: History) -> float:
        seconds, host_seconds = candidate(history)
        calls = untouched(seconds, history, touch)
        replays.append((calls / len(history.order), host_seconds - seconds))
        return calls

    def rival(history: History) -> float:
        return untouched(context.baseline.run(name, history), history, touch)

    found = measure(GpuSides(context, name, workspace, most, replay, rival), config, name, "device")
    claimed = found.candidate_us / 1e6
    allowed = max(CLOCKS_DIFFER, 0.25 * most * claimed)

    def agree() -> bool:
        """Whether the clocks agree on some replay that was no slower than what is claimed."""
        return any(seconds <= 1.25 * claimed and more <= allowed for seconds, more in replays)

    window = slice(0, most)
    for _ in range(SECOND_LOOKS):
        if agree():
            break
        context.prepare(window, workspace)  # as ever, lest a second look be known for one
        history = context.history(window)
        arena.settle()
        replay(history)
        history.apply(arena.inputs)
        context.check_due(history)
    if not agree():
        raise CandidateFailed(Status.IMPLAUSIBLE, "the device's clock saw much less time pass than the host's")
    return found


def pair_on_host(host: HostRun, workspace: int, context: TimingContext, name: str, protocol: str) -> Timing:
    """Time single calls on the host's clock, in blocks of either side: `offline`, or `server` with idle gaps.

    What counts is a block's total: a call that did the others' work is in it. Raises CandidateFailed.
    """
    gap, most = gap_seconds(context.config, protocol), host_calls(context.config, context.arena.buffers)
    sides = GpuSides(
        context,
        name,
        workspace,
        most,
        lambda history: sum(host(history, gap)),
        lambda history: context.baseline.host_seconds(name, history, gap),
    )
    return measure(sides, context.config, name, protocol)


def read_floor(context: TimingContext, baselines: Sequence[str]) -> timing.ReadFloor:
    """How long a kernel takes that only reads the problem's operands once and writes as many bytes as C has, beside
    baselines that were prepared. Raises HarnessFault, ValueError.

    A product of few rows does little more than read its weights, so its figures say more beside that one. The kernels
    that read, in several launches, and the baselines go through the same histories on all sets of inputs, in drawn
    order. The launches are sieved in some rounds; the best few are then measured in the same rounds as the baselines,
    and the one of the smallest median counts: a floor is a minimum.
    """
    side = context.baseline
    own = side.problem.layout
    ways = {launch: Way(own, run) for launch, run in side.readings().items()}
    sieved = _rounds(context, ways, SIEVE)
    best = sorted(ways, key=lambda name: statistics.median(sieved[name]))[:FINALISTS]
    others = {name: Way(split(name)[1], partial(side.run, name)) for name in baselines}
    rounds = _rounds(context, {name: ways[name] for name in best} | others, ROUNDS)
    launch = min(best, key=lambda name: statistics.median(rounds[name]))
    return timing.ReadFloor(launch, rounds[launch], {name: rounds[name] for name in baselines})


class Way(NamedTuple):
    """What `run` does with a history's calls, on B in that layout: seconds on the device's clock."""

    layout: str
    run: Callable[[History], float]


def _rounds(context: TimingContext, ways: Mapping[str, Way], count: int) -> dict[str, list[float]]:
    """Seconds a call of each of these in each round, from the seconds of a history's calls on the device's clock,
    touches included. One more round goes ahead, which loads what a first run must."""
    every = slice(0, context.arena.buffers.sets)
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count + 1):
        context.arena.fill(every)
        history = context.history(every)
        for name in context.rng.permutation(list(ways)).tolist():
            context.baseline.lay(ways[name].layout, every)
            context.arena.settle()
            seconds = untouched(ways[name].run(history), history, context.touch_seconds)
            rounds[name].append(seconds / len(history.order))
    return {name: seconds[1:] for name, seconds in rounds.items()}
