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
from cudal2.worker.cuda.layout import Layout
from cudal2.worker.cuda.names import split
from cudal2.worker.outcome import CandidateFailed, raise_finding

if TYPE_CHECKING:
    from cudal2.worker.cuda.baselines import Vendor

CLOCKS_DIFFER = 0.5e-3
"""Seconds of a replay that the host's clock may see beyond the device's."""
SECOND_LOOKS = 20
"""Replays more before the clocks are said to differ: a host with much else to do is called away in most of a few."""

HostRun = Callable[[Sequence[int], float], list[float]]
"""Calls sets one by one with mean gaps of so many seconds; seconds of each call on the host's clock."""


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

    def check(self, window: slice, workspace: int) -> None:
        """Everything about a timed window but its time. Raises CandidateFailed."""
        if not self.arena.inputs_intact(window):
            raise CandidateFailed(Status.WRONG, "in timed calls an input was changed")
        if not self.arena.others_unwritten(window):
            raise CandidateFailed(Status.OUT_OF_BOUNDS, "a timed call wrote to the output of another")
        if said := self.arena.workspace_finding(workspace):
            raise CandidateFailed(Status.WRONG, f"a timed call {said}")
        results = self.arena.c[window], self.vendor.c[window]
        raise_finding(verify.check_timed(*results, self.arena.problem, self.rounding))


def pair(candidate: Run, guess: float, workspace: int, stage: Stage, name: str, vendor_guess: float) -> Timing:
    """Time `candidate` (about `guess` seconds a call, `workspace` bytes) against baseline `name` on the device's clock.

    Every window has fresh inputs and goes through its sets in an order that the candidate cannot know. Once, at a
    moment that it cannot know either, the inputs change between the calls. Raises CandidateFailed.
    """
    vendor, config, sets = stage.vendor, stage.config, stage.arena.layout.sets
    ours: list[float] = []
    theirs: list[float] = []
    unseen: list[float] = []
    count = timing.calls_for(max(guess, vendor_guess), config.batch_ms / 1e3, sets)
    salted = int(stage.rng.integers(config.min_pairs + 1))
    orders: dict[int, list[int]] = {}
    started, first, warm_up = time.perf_counter(), 0, True
    while True:
        window = slice(first, first + count)
        order = orders.setdefault(first, (first + stage.rng.permutation(count)).tolist())
        if salted == 0:
            salted_calls(candidate, workspace, stage, name, window, order)
        salted -= 1
        stage.prepare(window, name, workspace)
        leader = stage.first()
        for side in (leader, "vendor" if leader == "candidate" else "candidate"):
            stage.arena.settle()
            if side == "candidate":
                seconds, host_seconds = candidate(order)
            else:
                vendor_seconds = vendor.run(name, window)
        stage.check(window, workspace)
        if not warm_up:
            ours.append(seconds / count)
            theirs.append(vendor_seconds / count)
            unseen.append(host_seconds - seconds)
        warm_up = False
        first = first + count if first + 2 * count <= sets else 0
        if timing.enough(ours, theirs, config, started):
            break
    allowed = max(CLOCKS_DIFFER, 0.25 * count * float(np.median(ours)))
    while min(unseen) > allowed and len(unseen) < len(ours) + SECOND_LOOKS:
        stage.prepare(window, name, workspace)  # as ever, lest a second look be known for one
        stage.arena.settle()
        seconds, host_seconds = candidate(order)
        unseen.append(host_seconds - seconds)
    if min(unseen) > allowed:
        raise CandidateFailed(Status.IMPLAUSIBLE, "the device's clock saw much less time pass than the host's")
    if said := stage.arena.guard_finding():
        raise CandidateFailed(Status.OUT_OF_BOUNDS, f"a timed call {said}")
    return timing.summary(ours, theirs, name, "device", count, config)


def salted_calls(candidate: Run, workspace: int, stage: Stage, name: str, window: slice, order: list[int]) -> None:
    """The calls of a timed window, each set's A changed just before its call. Raises CandidateFailed.

    Shows a call that did the work of later ones ahead, wherever it left the results.
    """
    stage.prepare(window, name, workspace)
    salts = stage.arena.salts(order)
    stage.vendor.refresh(split(name)[1], window)  # its A is another copy where it wants B otherwise
    stage.arena.settle()
    candidate(order, salts)
    stage.vendor.run(name, window)
    stage.check(window, workspace)


def pair_on_host(host: HostRun, workspace: int, stage: Stage, name: str, protocol: str) -> Timing:
    """Time single calls on the host's clock, in blocks of either side: `offline`, or `server` with idle gaps.

    Raises CandidateFailed.
    """
    vendor, config, sets = stage.vendor, stage.config, stage.arena.layout.sets
    gap = 1 / config.server_qps if protocol == "server" else 0.0
    count, layout = min(config.host_calls, sets), split(name)[1]
    ours: list[float] = []
    theirs: list[float] = []
    started, first = time.perf_counter(), 0
    while not timing.enough(ours, theirs, config, started):
        window = slice(first, first + count)
        stage.prepare(window, name, workspace)
        leader = stage.first()
        for side in (leader, "vendor" if leader == "candidate" else "candidate"):
            stage.arena.settle()
            if side == "candidate":
                ours.append(float(np.median(host((first + stage.rng.permutation(count)).tolist(), gap))))
            else:
                calls = vendor.vendor.host_seconds(name, vendor.problem, vendor.sets(layout)[window], count, gap)
                theirs.append(float(np.median(calls)))
        stage.check(window, workspace)
        first = first + count if first + 2 * count <= sets else 0
    return timing.summary(ours, theirs, name, protocol, count, config)
