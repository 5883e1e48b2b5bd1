"""What a bench says about a candidate, on any target, how a failing candidate leaves it, and how long one may run in
all: a limit on each of its calls would let it hold a device for minutes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from cudal2.records import Status, Timing
from cudal2.worker import verify


class CandidateFailed(Exception):
    """The candidate's code failed, or what it computed did: the status and reason of its verdict.

    `known` are further fields of its Outcome, as far as the check that failed had come to them.
    """

    def __init__(self, status: Status, reason: str, **known: Any) -> None:
        super().__init__(reason)
        self.status, self.reason, self.known = status, reason, known

    def outcome(self, found: "Outcome", seconds: dict[str, float]) -> "Outcome":
        """Of a bench that has `found` so much before it failed."""
        return msgspec.structs.replace(found, status=self.status, reason=self.reason, seconds=seconds, **self.known)


class Outcome(msgspec.Struct, frozen=True):
    """What a bench found; the fields are those of `Verdict`."""

    status: Status
    reason: str = ""
    rho: float | None = None
    max_error: float | None = None
    repeatable: bool | None = None
    timings: tuple[Timing, ...] = ()
    seconds: dict[str, float] = {}


class Clock:
    """Splits wall time into named laps, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def raise_finding(found: verify.Finding | None, **known: Any) -> None:
    """Turn what verification found into the candidate's failure."""
    if found:
        raise CandidateFailed(*found, **known)


class Allowance:
    """So many `seconds` of wall time for all that one candidate runs, its checks and its timing.

    They are charged while something of the candidate's is waited for, and then alone: what the baseline takes, or the
    referee for its references, or another try after a disturbance by others, is not the candidate's fault.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent, self._since = 0.0, 0.0

    @property
    def left(self) -> float:
        """Seconds; zero or less when they are used up."""
        running = time.perf_counter() - self._since if self._since else 0.0
        return self.seconds - self._spent - running

    @property
    def reason(self) -> str:
        """What a verdict says of a candidate that has used them up."""
        return f"running it took more than {self.seconds:g} s in all (worker.verdict_seconds)"

    @contextmanager
    def charged(self) -> Iterator[None]:
        """The candidate runs in the body. Not to be nested."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - self._since
            self._since = 0.0
