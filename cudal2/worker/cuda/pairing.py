"""A candidate's replay and a vendor's library timed in pairs, and every output of a timed launch compared.

Both sides run graphs over the same sets in a window, behind a short spin on the device, so that neither pays for its
launch. They sit in two processes: the candidate's replay sees the shared buffers, the vendor's calls see private copies
of the same inputs, and their results are the reference for the candidate's.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.records import Status, Timing
from cudal2.worker import timing, verify
from cudal2.worker.cuda.arena import Arena, private
from cudal2.worker.cuda.checking import Run
from cudal2.worker.cuda.layout import Layout, Salt
from cudal2.worker.cuda.vendor.names import split
from cudal2.worker.outcome import CandidateFailed, raise_finding

if TYPE_CHECKING:
    from cudal2.worker.cuda.vendor.baselines import Vendor

CLOCKS_DIFFER = 0.5e-3
"""Seconds of a replay that the host's clock may see beyond the device's."""
SECOND_LOOKS = 20
"""Replays more before the clocks are said to differ: a host with much else to do is called away in most of a few."""

HostRun = Callable[[Sequence[int], float, Sequence[Salt]], list[float]]
"""Calls sets one by one with mean gaps of so many seconds, each behind a salt where there are any; seconds of each call
on the host's clock."""


class VendorSide:
    """The vendor's calls on sets of matrices a [sets,M,K], b [sets,*b_shape], c [sets,M,N], captured in graphs."""

    def __init__(self, vendor: "Vendor", place: Layout, a: Tensor, b: Tensor, c: Tensor) -> None:
        self.vendor, self.problem, self.c, self._place = vendor, place.problem, c, place
        self._inputs: dict[str, tuple[Tensor, Tensor]] = {place.problem.layout: (a, b)}
        self._graphs: dict[tuple[str, int, int], torch.cuda.CUDAGraph] = {}

    def inputs(self, layout: str) -> tuple[Tensor, Tensor]:
        """A and B of every set, B stored in `layout`; up to date after `refresh`."""
        if layout not in self._inputs:
            turned = msgspec.structs.replace(self.problem, layout=layout)
            self._inputs[layout] = private(msgspec.structs.replace(self._place, problem=turned), self.c.device)[:2]
            self.refresh(layout, slice(None))
        return self._inputs[layout]

    def refresh(self, layout: str, window: slice) -> None:
        """Bring the inputs of these sets into `layout`, where that is not how they were filled."""
        if layout != self.problem.layout:
            (a, b), (our_a, our_b) = self.inputs(layout), self._inputs[self.problem.layout]
            a[window] = our_a[window]
            b[window] = our_b[window].transpose(1, 2)

    def sets(self, layout: str) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(a, b, c) of every set."""
        return list(zip(*self.inputs(layout), self.c))

    def run(self, name: str, window: slice) -> float:
        """Seconds on the device's clock of one pass over these sets with baseline `name`."""
        key = (name, window.start, window.stop)
        if key not in self._graphs:
            self._graphs[key] = self.vendor.capture(name, self.problem, self.sets(split(name)[1])[window])
            self.vendor.clock.replay(self._graphs[key])  # uploads it
        return self.vendor.clock.replay(self._graphs[key])

    def host_seconds(self, name: str, window: slice, gap: float) -> float:
        """Seconds on the host's clock of single calls on these sets with baseline `name`, all together."""
        sets = self.sets(split(name)[1])[window]
        return sum(self.vendor.host_seconds(name, self.problem, sets, len(sets), gap))


def gap_seconds(config: WorkerConfig, protocol: str) -> float:
    """Mean seconds between two calls of a host-timed protocol."""
    return 1 / config.server_qps if protocol == "server" else 0.0


def host_calls(config: WorkerConfig, place: Layout) -> int:
    """Calls in a block of a host-timed protocol, each on a set of its own."""
    return min(config.host_calls, place.sets)


class Stage(msgspec.Struct, frozen=True):
    """Where the two sides meet: the buffers, the vendor, how long to measure, how f16 accumulators round."""

    arena: Arena
    vendor: VendorSide
    config: WorkerConfig
    rng: np.random.Generator
    rounding: int

    def prepare(self, window: slice, name: str, workspace: int) -> None:
        """Fresh inputs for both sides, every output and the workspace poisoned."""
        self.arena.fill(window)
        self.vendor.refresh(split(name)[1], window)
        self.arena.poison(workspace)

    def first(self) -> str:
        """Which side goes first, by the toss of a coin."""
        return ("candidate", "vendor")[self.rng.integers(2)]

    def order(self, window: slice) -> list[int]:
        """The sets of a window as the candidate meets them: another order each time, lest it knows what comes next."""
        return (window.start + self.rng.permutation(window.stop - window.start)).tolist()

    def moments(self) -> list[bool]:
        """Which of the next windows are salted, the last first: one for every two that are timed, in a secret order."""
        timed = self.config.min_pairs + 1
        return (self.rng.permutation(timed + -(-timed // 2)) >= timed).tolist()

    def check(self, window: slice, workspace: int) -> None:
        """Everything about a timed window but its time. Raises CandidateFailed."""
        if not self.arena.inputs_intact():
            raise CandidateFailed(Status.WRONG, "in timed calls an input was changed")
        if not self.arena.others_unwritten(window):
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "a timed call wrote to the output of another")
        if said := self.arena.guard_finding():
            raise CandidateFailed(Status.OUT_OF_BOUNDS, f"a timed call {said}")
        if said := self.arena.workspace_finding(workspace):
            raise CandidateFailed(Status.WRONG, f"a timed call {said}")
        results = self.arena.c[window], self.vendor.c[window]
        raise_finding(verify.check_timed(*results, self.arena.problem, self.rounding))

    def check_one(self, number: int) -> None:
        """One output of a window as strictly as those of single calls. Raises CandidateFailed."""
        arena = self.arena
        exact = verify.reference(arena.inputs[0][number], arena.inputs[1][number], arena.problem)
        raise_finding(verify.check_normal(arena.c[number], exact, arena.problem, self.rounding)[0])


class Protocol(msgspec.Struct, frozen=True):
    """How the two sides go through a window of `count` sets: both give seconds of all its calls together.

    `ours` takes the candidate's order of the sets and a salt for each, or none; `theirs` the window.
    """

    name: str
    count: int
    ours: Callable[[Sequence[int], Sequence[Salt]], float]
    theirs: Callable[[slice], float]


def pair(candidate: Run, guess: float, workspace: int, stage: Stage, name: str, vendor_guess: float) -> Timing:
    """Time `candidate` (about `guess` seconds a call, `workspace` bytes) against baseline `name` on the device's clock.

    Raises CandidateFailed, also where the host's clock tells of longer replays than the device's.
    """
    config, sets = stage.config, stage.arena.layout.sets
    count = timing.calls_for(max(guess, vendor_guess), config.batch_ms / 1e3, sets)
    replays: list[tuple[float, float]] = []  # seconds on the device's clock, and how many more the host's saw

    def ours(order: Sequence[int], salts: Sequence[Salt] = ()) -> float:
        seconds, host_seconds = candidate(order, salts)
        if not salts:
            replays.append((seconds, host_seconds - seconds))
        return seconds

    device = Protocol("device", count, ours, lambda window: stage.vendor.run(name, window))
    found = measure(device, workspace, stage, name)
    batch = count * found.candidate_us / 1e6
    allowed, most = max(CLOCKS_DIFFER, 0.25 * batch), 1.25 * batch

    def agree() -> bool:
        """Whether the clocks agree on some replay that was no slower than what is claimed."""
        return any(seconds <= most and more <= allowed for seconds, more in replays)

    window = slice(0, count)
    for _ in range(SECOND_LOOKS):
        if agree():
            break
        stage.prepare(window, name, workspace)  # as ever, lest a second look be known for one
        stage.arena.settle()
        ours(stage.order(window))
    if not agree():
        raise CandidateFailed(Status.IMPLAUSIBLE, "the device's clock saw much less time pass than the host's")
    return found


def pair_on_host(host: HostRun, workspace: int, stage: Stage, name: str, protocol: str) -> Timing:
    """Time single calls on the host's clock, in blocks of either side: `offline`, or `server` with idle gaps.

    What counts is a block's total: a call that did the others' work is in it. Raises CandidateFailed.
    """
    gap, count = gap_seconds(stage.config, protocol), host_calls(stage.config, stage.arena.layout)
    on_host = Protocol(
        protocol,
        count,
        lambda order, salts: sum(host(order, gap, salts)),
        lambda window: stage.vendor.host_seconds(name, window, gap),
    )
    return measure(on_host, workspace, stage, name)


def measure(protocol: Protocol, workspace: int, stage: Stage, name: str) -> Timing:
    """Time windows of both sides in pairs, and look at all that the candidate leaves behind. Raises CandidateFailed.

    Every window has fresh inputs and is gone through in an order that the candidate cannot know. One in three, at
    moments that it cannot know either, is not timed: there the inputs change between the calls.
    """
    config, sets, count = stage.config, stage.arena.layout.sets, protocol.count
    ours: list[float] = []
    theirs: list[float] = []
    salted: list[bool] = []  # of the windows to come, the last first
    started, first, warm_up, done, strict = time.perf_counter(), 0, True, False, True
    while not done or any(salted):
        salted = salted or stage.moments()
        window = slice(first, first + count)
        if salted.pop():
            order = _calls(protocol, workspace, stage, name, window, salted=True)[2]
            if strict:  # a later call, which sees what those before it left; once, for it takes a while
                stage.check_one(int(stage.rng.choice(order[1:] or order)))
            strict = False
        elif not done:
            our_seconds, their_seconds, _ = _calls(protocol, workspace, stage, name, window)
            if not warm_up:
                ours.append(our_seconds / count)
                theirs.append(their_seconds / count)
            warm_up = False
            first = first + count if first + 2 * count <= sets else 0
            done = timing.enough(ours, theirs, config, started)
    return timing.summary(ours, theirs, name, protocol.name, count, config)


def _calls(
    protocol: Protocol, workspace: int, stage: Stage, name: str, window: slice, salted: bool = False
) -> tuple[float, float, list[int]]:
    """Seconds of a window's calls, the candidate's and the vendor's, and the candidate's order. Raises CandidateFailed.

    Salted, an element of each set's inputs changes just before its call: that shows a call which did the work of later
    ones ahead, wherever it left the results.
    """
    stage.prepare(window, name, workspace)
    order, leader = stage.order(window), stage.first()
    salts = stage.arena.salts(order) if salted else ()
    if salted:
        stage.vendor.refresh(split(name)[1], window)  # its A is another copy where it wants B otherwise
    for side in (leader, "vendor" if leader == "candidate" else "candidate"):
        stage.arena.settle()
        if side == "candidate":
            ours = protocol.ours(order, salts)
        else:
            theirs = protocol.theirs(window)
    stage.check(window, workspace)
    return ours, theirs, order
