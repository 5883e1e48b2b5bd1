"""What a worker needs from a target: to prepare a source, to measure what came of it, to time the baselines, to give
out what runs without a worker (`Portable`), and for which rows; and the lock of what is measured on."""

import fcntl
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Binary, Candidate, Environment, HarnessFault, Status, Timing
from cudal2.target import Target
from cudal2.worker.cache import Cache
from cudal2.worker.outcome import Outcome
from cudal2.worker.sandbox import jail
from cudal2.worker.timing import ReadFloor

R = TypeVar("R")
BINARY_REMEDY = "Export it again, or bring the folder anew from where it was exported"


class NotPortable(ValueError):
    """The kernel runs only with its author's host code; the message says why."""


class Portable(msgspec.Struct, frozen=True):
    """What a user needs of a kernel, without any worker: a processor's shared object, or a GPU's cubin and the recipe
    of its launches. `rows` are the first and the last number of rows that it is for, none where it is for one.
    """

    code: bytes
    recipe: bytes = b""
    rows: tuple[int, int] | None = None


def right_rows(candidate: Candidate, rows: Iterable[int], right: Callable[[Candidate], R | None]) -> dict[int, R]:
    """What `right` gives of the candidate at each of these numbers of rows, down and up from its own to the first for
    which that is nothing."""
    wanted, by_rows = set(rows), {}
    for step in (-1, 1):
        m = candidate.problem.m + step
        while m in wanted:
            problem = msgspec.structs.replace(candidate.problem, m=m)
            made = right(msgspec.structs.replace(candidate, problem=problem))
            if made is None:
                break
            by_rows[m] = made
            m += step
    return by_rows


def row_range(rows: Iterable[int], own: int) -> tuple[int, int] | None:
    """The first and the last of these numbers that lead to `own` without a gap; None where there is no other."""
    known, first, last = {own, *rows}, own, own
    while first - 1 in known:
        first -= 1
    while last + 1 in known:
        last += 1
    return None if first == last else (first, last)


def end_rows(rows: tuple[int, int], own: int) -> tuple[int, ...]:
    """The first and the last of these numbers, as far as they are others than `own`."""
    return tuple(m for m in dict.fromkeys(rows) if m != own)


def good_rows(rows: tuple[int, int], own: int, good: Collection[int]) -> tuple[int, int]:
    """The part of `rows` about `own` whose ends are good: on either side all, or nothing."""
    first, last = rows
    return first if first in good else own, last if last in good else own


def read_binary(binary: Binary) -> tuple[bytes, bytes]:
    """The code, and the recipe of a GPU's (else nothing).

    Raises HarnessFault where a file cannot be read, or holds something else than was written into it.
    """
    return _unchanged(*binary.code), _unchanged(*binary.recipe) if binary.recipe else b""


def _unchanged(path: str, sha256: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise HarnessFault(f"{path} cannot be read: {error.strerror}", BINARY_REMEDY) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise HarnessFault(f"{path} is damaged: its digest is another", BINARY_REMEDY)
    return data


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

    def outcome(self, measured: Outcome) -> Outcome:
        """What was measured; of a candidate that had failed before that, it only says how badly."""
        if self.status is Status.OK:
            return measured
        if measured.status is Status.OK:
            return Outcome(self.status, self.reason, measured.rho, measured.max_error, seconds=measured.seconds)
        return msgspec.structs.replace(measured, reason=f"{measured.reason}; {self.reason}")


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


def backend_of(target: Target, config: WorkerConfig, cache: Cache) -> Backend:
    """The backend of a target, in the folder that its kind names; imported, with its libraries, only where it is asked
    for."""
    kind = jail.choose(config.jail, system=target.devices)
    return import_module(f"cudal2.worker.{target.kind}.backend").BACKEND(target, config, kind, cache)
