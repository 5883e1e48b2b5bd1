"""What a worker needs from a target: to prepare a source, to measure what came of it, to time the baselines; and
the lock of what is measured on."""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import msgspec

from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Status, Timing
from cudal2.worker.outcome import Outcome
from cudal2.worker.portable import Portable
from cudal2.worker.sandbox import jail
from cudal2.worker.timing import ReadFloor


@contextmanager
def device_lock(exclusive: bool, name: str = "device") -> Iterator[None]:
    """Hold the machine, or the GPU, of that name: alone to time, or together with others who do not time."""
    with (jail.scratch() / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


class Launchable(msgspec.Struct, frozen=True):
    """What a bench runs, all that is left of a candidate: its shared object here, more of it with each target's own.

    It may be measured by any worker of its target on the same device, as often as one likes.
    """

    library: bytes


class Uncounted(ValueError):
    """No hardware counters of this kernel are to be had; the message says why."""


class Uncountable(Uncounted):
    """Nor of any other kernel, here and now."""


L = TypeVar("L", bound=Launchable)


class Prepared(msgspec.Struct, Generic[L], frozen=True):
    """A candidate before it is measured: what failed, or what can be launched, which is there where `status` is ok; and
    where a published kernel is imprecise by its instructions: a reader wants to know by how much.

    `log` holds the compiler's words, `seconds` where the time went.
    """

    status: Status
    reason: str = ""
    log: str = ""
    launchable: L | None = None
    seconds: dict[str, float] = {}

    @property
    def library(self) -> bytes:
        """The shared object; empty unless there is something to launch."""
        return self.launchable.library if self.launchable else b""


class Backend(Protocol[L]):
    """One target's half of the worker: `BACKEND` in the module `backend` of the folder that `Target.kind` names.
    Every method may raise HarnessFault."""

    environment: Environment
    machine: str
    """Names the very device, short: two that are alike share an environment, not this."""
    exclusive_builds: bool
    """Whether preparing beside a measurement would disturb it."""
    lock: str
    """Names what is measured on: one measurement at a time on each."""

    def prepare(self, candidate: Candidate) -> Prepared[L]:
        """Build the source, edit what came of it, and whatever else can be done beside other work."""

    def measure(self, launchable: L, problem: Problem) -> Outcome:
        """Check and time what was prepared."""

    def portable(self, candidate: Candidate, launchable: L, others: Mapping[int, L] = {}) -> Portable:
        """What is exported of a candidate that was prepared, or NotPortable where its host code is needed.

        `others` were prepared for the same problem with other numbers of rows, next to one another, and were found to
        be right; it serves these, too, as far as its launches can be exported.
        """

    def counters(self, portable: Portable, problem: Problem) -> dict[str, float]:
        """What the hardware counts in a call, by name, when the device is free; Uncounted where that cannot be told."""

    def foreign_headers(self, candidate: Candidate) -> frozenset[str]:
        """Headers that the candidate's ABI brings beside the target's own; ValueError for an unknown ABI."""

    def baseline_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        """Seconds a call of each baseline at its best, by name; ValueError for an unknown protocol."""

    def compare_baseline_with_itself(self, problem: Problem, protocol: str) -> Timing:
        """A/A: the fastest baseline timed as a candidate would be; ValueError for an unknown protocol."""

    def read_floor(self, problem: Problem) -> ReadFloor:
        """How long only reading a problem's operands takes, beside the baselines; ValueError where none can tell."""

    def close(self) -> None:
        """End every process; the next call starts new ones."""
