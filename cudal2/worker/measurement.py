"""How fast is a candidate next to a baseline? The loop that answers it, the same on every target.

Candidate and baseline go through batch after batch of calls on equal inputs, in random order. Decided here is which
side goes first, which buffers come next, which batches count, that every output is compared, and when it is enough.
How two sides meet on a processor or on a GPU is their backend's matter: it implements `Sides`.
"""

import math
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeVar

import msgspec
from torch import Tensor

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status, Timing
from cudal2.worker import timing, verify
from cudal2.worker.outcome import CandidateFailed, raise_finding

T = TypeVar("T")

TRIES = 3
UNWATCHED = 60
"""So many batches more than `max_pairs` are tried for enough of them to be watched."""
BUSY = "Stop other programs; on a processor, set worker.threads to the number of cores that are free"
"""The remedy where something else is at work."""

Role = Literal["candidate", "baseline"]


class Batch(msgspec.Struct, frozen=True):
    """One turn of both sides: so many calls of each, one call a slot, from slot `first` on; `leader` goes first."""

    first: int
    candidate: int
    baseline: int
    leader: Role

    @property
    def count(self) -> int:
        """Slots that either side touches."""
        return max(self.candidate, self.baseline)

    @property
    def window(self) -> slice:
        """Those slots."""
        return slice(self.first, self.first + self.count)

    @property
    def order(self) -> tuple[Role, Role]:
        """Which side runs first, and which second."""
        return ("candidate", "baseline") if self.leader == "candidate" else ("baseline", "candidate")


class Sides(Protocol):
    """A candidate and a baseline on the slots of one problem. A slot is room for A, B and C of one call.

    Every batch is timed, and in every batch some inputs change while it runs: a candidate that was watched at certain
    moments only would learn to know them. `measure` takes the steps of a batch in the order in which they stand here.
    Each may raise CandidateFailed.
    """

    problem: Problem
    rounding: int
    """Products after which an f16 accumulator of the target rounds."""
    slots: range
    """Those that batches move on through, and round again."""
    warm_up: bool
    """Whether the first batch counts for nothing."""
    looks_always: bool
    """Whether a closer look takes so little time that every batch gets one."""

    @abstractmethod
    def calls(self, candidate: list[float], baseline: list[float]) -> tuple[int, int]:
        """How many calls of candidate and baseline make the next batch, from seconds a call measured so far."""

    def wake(self, batch: Batch) -> None:
        """Whatever a side may do before the batch has inputs; nothing, where no code of a side runs unasked."""
        return

    @abstractmethod
    def fill(self, batch: Batch) -> None:
        """Fresh inputs for both sides in the batch's window, which neither has seen, all at rest."""

    @abstractmethod
    def ready(self, role: Role, batch: Batch) -> None:
        """The last step before a side runs. Now the outputs that it is to write are poisoned and nothing is at work."""

    @abstractmethod
    def run(self, role: Role, batch: Batch) -> float:
        """The side's calls; seconds a call."""

    @abstractmethod
    def outputs(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Of every candidate's call its output and the baseline's on the same inputs: tensors [calls,M,N], in parts.

        Raises CandidateFailed where a call wrote anything but its own output.
        """

    def watched(self) -> bool:
        """Whether inputs changed in enough batches while these ran, for whoever works ahead to be found out."""
        return True

    def unwatched(self) -> Exception:
        """What to raise where so many batches could not be watched; another try may go better."""
        return Disturbed("the machine is too busy to watch a kernel while it is timed", BUSY)

    def look_closer(self, batch: Batch) -> None:
        """Hold one output of a batch to the bounds of the single calls. Done once in each `min_pairs` batches, at a
        secret moment, or in every batch where that `looks_always`."""
        return


def measure(sides: Sides, config: WorkerConfig, name: str, protocol: str) -> Timing:
    """Time a candidate against baseline `name` in pairs of batches until that is `timing.enough`.

    Raises CandidateFailed, HarnessFault.
    """
    candidate: list[float] = []
    baseline: list[float] = []
    started, first, calls = time.perf_counter(), sides.slots.start, 0
    closer = 0
    done, warm = False, not sides.warm_up
    while not done:
        batch = _next(sides, first, sides.calls(candidate, baseline))
        started += _waking(sides, batch)  # whoever takes long over that shall not end the measuring by it
        seconds = _take(sides, batch)
        first, calls = batch.window.stop, max(calls, batch.candidate)
        if not warm:
            warm = True
            continue
        place = len(candidate) % config.min_pairs
        closer = secrets.randbelow(config.min_pairs) if not place else closer
        if sides.looks_always or place == closer:
            sides.look_closer(batch)
        candidate.append(seconds["candidate"])
        baseline.append(seconds["baseline"])
        done = timing.enough(candidate, baseline, config, started) and sides.watched()
        if not done and len(candidate) > config.max_pairs + UNWATCHED:
            raise sides.unwatched()
    return steady(timing.summary(candidate, baseline, name, protocol, calls, config), baseline, config)


def next_start(first: int, count: int, slots: range) -> int:
    """Where the next batch of `count` slots begins: at `first`, or at the first of all where it does not fit there."""
    return first if first + count <= slots.stop else slots.start


def _next(sides: Sides, first: int, calls: tuple[int, int]) -> Batch:
    """A batch from slot `first` on, or from the start; who goes first is drawn."""
    leader: Role = "baseline" if secrets.randbelow(2) else "candidate"
    return Batch(next_start(first, max(calls), sides.slots), *calls, leader)


def _waking(sides: Sides, batch: Batch) -> float:
    """Seconds that it takes until both sides are awake."""
    begun = time.perf_counter()
    sides.wake(batch)
    return time.perf_counter() - begun


def _take(sides: Sides, batch: Batch) -> dict[Role, float]:
    """Seconds a call of either side in a batch, after every output was compared. Raises CandidateFailed."""
    sides.fill(batch)
    seconds: dict[Role, float] = {}
    for role in batch.order:
        sides.ready(role, batch)
        seconds[role] = sides.run(role, batch)
    for results, references in sides.outputs(batch):
        raise_finding(verify.check_timed(results, references, sides.problem, sides.rounding))
    return seconds


class Disturbed(HarnessFault):
    """Something else was at work beside a measurement; another may go better."""


def undisturbed(measured: Callable[[], Timing], alone: float, most: float) -> Timing:
    """What `measured` finds, again where something else was at work beside it.

    So it was where it raises Disturbed, and where the baseline took `most` times its seconds `alone`. Raises Disturbed
    after a few tries.
    """

    def once() -> Timing:
        found = measured()
        slowdown = found.baseline_us / alone / 1e6
        if slowdown > most:
            raise disturbed(f"{found.baseline} takes {slowdown:.1f} times as long as alone")
        return found

    return tried(once)


def tried(once: Callable[[], T]) -> T:
    """What `once` finds, which may raise Disturbed a few times."""
    for _ in range(TRIES - 1):
        with suppress(Disturbed):
            return once()
    return once()


def steady(found: Timing, baseline: list[float], config: WorkerConfig) -> Timing:
    """What was found, unless its interval spans more than `disturbed`, and at least half of that is the baseline's.

    `baseline` has the seconds a call of its batches. A candidate that is now fast, now slow beside a steady baseline
    gets its verdict, or it would escape a bad one: its interval is wide, and the lower end counts. Raises Disturbed.
    """
    k, _ = timing.final_look(len(baseline), config.min_pairs, config.max_pairs, config.confidence)
    span, ordered = found.high / found.low, sorted(baseline)
    if span > config.disturbed and ordered[-k] / ordered[k - 1] > math.sqrt(config.disturbed):
        raise disturbed(f"{found.baseline} is now fast, now slow, and the interval spans a factor of {span:.1f}")
    return found


def disturbed(said: str) -> Disturbed:
    """What was seen that only others can have caused."""
    return Disturbed(f"the machine is too busy to time: {said}", BUSY)


def plausible(found: Timing, floor: float) -> Timing:
    """What was found, where it is not below `floor`: seconds a call that nothing on the device undercuts.

    Raises CandidateFailed.
    """
    if found.candidate_us < floor * 1e6:
        raise CandidateFailed(Status.IMPLAUSIBLE, f"{found.candidate_us:.3g} µs is below what is possible")
    return found
