"""What a bench says about a candidate, on any target, and how a failing candidate leaves it."""

import time
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
