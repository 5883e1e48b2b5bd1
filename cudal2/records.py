"""What is handed from one stage to the next, as frozen records that go to JSON and back unchanged.

A bad kernel is data: every way a candidate can fail is a `Status`. A broken harness is a `HarnessFault`
with a remedy; it never becomes a verdict, so it never becomes a reward.
"""

import hashlib
from enum import StrEnum
from typing import Literal

import msgspec

from cudal2.problem import Problem


class HarnessFault(RuntimeError):
    """The harness or the device failed, not the kernel: `problem` says what, `remedy` what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self):  # keeps both arguments when crossing a process boundary
        return type(self), (self.problem, self.remedy)


class Status(StrEnum):
    """What became of a candidate, in the order the stages find it out."""

    OK = "ok"
    NO_SOURCE = "no_source"
    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    PLAN_ERROR = "plan_error"
    LAUNCH_ERROR = "launch_error"
    TIMEOUT = "timeout"
    WRONG = "wrong"
    IMPRECISE = "imprecise"
    OUT_OF_BOUNDS = "out_of_bounds"
    IMPLAUSIBLE = "implausible"


CLOCKED = frozenset({Status.COMPILE_TIMEOUT, Status.TIMEOUT, Status.IMPLAUSIBLE})
"""What a clock decided: the same candidate may fare otherwise with more time or on a calmer machine, so that whoever
remembers results asks again. An archive may hold them."""


class Candidate(msgspec.Struct, frozen=True):
    """One complete source to be judged on one problem.

    `abi` says which entry point it defines: the contract's `hgemm`, or that of CUDA-L2's published kernels.
    """

    source: str
    problem: Problem
    target: str = "cpu"
    abi: Literal["contract", "cuda-l2"] = "contract"

    @property
    def key(self) -> str:
        """Hex digest of everything the author chose: source, problem and target."""
        foreign = () if self.abi == "contract" else (self.abi,)
        return digest(self.source, self.problem.name, self.target, *foreign)


class Environment(msgspec.Struct, frozen=True):
    """Where a verdict was reached; two verdicts compare only when `fingerprint` agrees."""

    device: str
    threads: int
    compiler: str
    flags: str
    libraries: str
    harness: str

    @property
    def fingerprint(self) -> str:
        """Short hex digest of the whole record."""
        return digest(*(str(value) for value in msgspec.structs.astuple(self)))[:16]


STRICT = 0.95
"""The least confidence of an interval that anything is decided by: what is certain, what is dispatched."""


class Timing(msgspec.Struct, frozen=True):
    """One candidate against one baseline under one protocol.

    Times are medians in microseconds a call. `speedup` is the median of paired baseline/candidate ratios,
    `low` and `high` an interval that holds the true one with at least this `confidence`, of which an earlier version
    said nothing (0). `paired` is False where the ratio was carried over from the best baseline through the
    baselines' own, earlier, measured ratio.
    """

    baseline: str
    protocol: str
    candidate_us: float
    baseline_us: float
    speedup: float
    low: float
    high: float
    pairs: int
    calls: int
    paired: bool = True
    confidence: float = 0.0


class Verdict(msgspec.Struct, frozen=True):
    """What the worker found out about one candidate.

    `timings` is non-empty exactly when `status` is ok, fastest baseline first. `rho` is the error in units
    of the rounding of a perfect fp16 result (1.0 is perfect). `log` is compiler output, truncated, safe to
    show in a prompt. `seconds` says where the wall time went, by stage; `cached` that none was spent.
    """

    key: str
    problem: Problem
    target: str
    status: Status
    environment: Environment
    reason: str = ""
    rho: float | None = None
    max_error: float | None = None
    repeatable: bool | None = None
    timings: tuple[Timing, ...] = ()
    log: str = ""
    seconds: dict[str, float] = {}
    cached: bool = False

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def timing(self) -> Timing | None:
        """Against the fastest baseline, the figure that rewards and rankings use."""
        return self.timings[0] if self.timings else None

    @property
    def speedup(self) -> float | None:
        """Median speedup over the fastest baseline; None unless ok."""
        return self.timing.speedup if self.timing else None


def digest(*parts: str) -> str:
    """SHA-256 in hex over the parts, each preceded by its length so that no two splits collide."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode()
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def to_json(record: msgspec.Struct) -> str:
    """One line of JSON."""
    return msgspec.json.encode(record).decode()


def verdict_from_json(text: str | bytes) -> Verdict:
    """The Verdict that `to_json` wrote; msgspec.ValidationError where the text is not one."""
    return msgspec.json.decode(text, type=Verdict)
