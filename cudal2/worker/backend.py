"""What a worker needs from a target: to prepare a source, to judge what came of it, to time the vendor's libraries."""

from typing import Any, Protocol

import msgspec

from cudal2.problem import Problem
from cudal2.records import Candidate, Environment, Status, Timing
from cudal2.worker.outcome import Outcome


class Prepared(msgspec.Struct, frozen=True):
    """A candidate before it is judged: what failed, or what the bench of its target runs.

    `library` is the shared object, `log` the compiler's words, `replay` what only the target's own bench reads.
    """

    status: Status
    reason: str = ""
    library: bytes = b""
    log: str = ""
    replay: Any = None
    seconds: dict[str, float] = {}


class Backend(Protocol):
    """One target's half of the worker. Every method may raise HarnessFault."""

    environment: Environment
    exclusive_builds: bool
    """Whether preparing beside a measurement would disturb it."""
    lock: str
    """Names what is measured on: one measurement at a time on each."""

    def prepare(self, candidate: Candidate) -> Prepared:
        """Build the source, and whatever else can be done beside other work."""

    def judge(self, prepared: Prepared, problem: Problem) -> Outcome:
        """Check and time what was prepared."""

    def foreign_headers(self, candidate: Candidate) -> frozenset[str]:
        """Headers that the candidate's ABI brings beside the target's own; ValueError for an unknown ABI."""

    def baseline_seconds(self, problem: Problem, protocol: str) -> dict[str, float]:
        """Seconds a call of each baseline at its best, by name; ValueError for an unknown protocol."""

    def compare_baseline_with_itself(self, problem: Problem, protocol: str) -> Timing:
        """A/A: the fastest baseline timed as a candidate would be; ValueError for an unknown protocol."""

    def close(self) -> None:
        """End every process; the next call starts new ones."""
