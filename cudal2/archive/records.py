"""What an archive holds: a sample's origin, the sample and what became of it, a kernel with its last verdict."""

import msgspec

from cudal2.problem import Problem
from cudal2.records import Status, Verdict, digest


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which sample a verdict judges; `run`, `step` and `index` identify it."""

    run: str
    step: int
    index: int
    policy: str = ""
    prompt: str = ""
    reward: float | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a training step: its origin and what became of it, whatever was measured of its kernel since.

    `low` is the lower bound of the speedup, None unless ok; `source` is a hash.
    """

    origin: Origin
    problem: Problem
    target: str
    fingerprint: str
    status: Status
    speedup: float | None
    low: float | None
    source: str


class Entry(msgspec.Struct, frozen=True):
    """A kernel and the last verdict on it."""

    source: str
    verdict: Verdict

    @property
    def hash(self) -> str:
        return digest(self.source)

    @property
    def low(self) -> float:
        """Lower bound of the speedup over the fastest baseline, by which kernels are ranked; 0 unless ok."""
        return self.verdict.timing.low if self.verdict.timing else 0.0
