"""What one stage hands to the next: frozen records, which can be written as JSON and read back unchanged.

A bad kernel is data: every way in which a candidate can fail is a `Status`. A broken harness raises a `HarnessFault`,
which states a remedy. It never becomes a verdict, so it never becomes a reward.
"""

import hashlib
from enum import StrEnum
from typing import Literal

import msgspec

from cudal2.moves import Control, Shift
from cudal2.problem import Problem


class HarnessFault(RuntimeError):
    """The harness or the device failed, not the kernel. `problem` says what failed, `remedy` what to do about it."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self):  # keeps both arguments when crossing a process boundary
        return type(self), (self.problem, self.remedy)


class Status(StrEnum):
    """Whether a candidate passed all stages, and if not, what was wrong. Failures are listed roughly in the order in
    which the stages find them."""

    OK = "ok"
    NO_SOURCE = "no_source"  # the completion holds no source with the entry point
    REJECTED = "rejected"  # the source or the built code does what is not allowed
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    PLAN_ERROR = "plan_error"  # what a GPU kernel's launcher did could not be recorded, or is not allowed
    LAUNCH_ERROR = "launch_error"  # it could not be run, or it crashed
    TIMEOUT = "timeout"  # running it took too long
    WRONG = "wrong"  # wrong results, or a changed input
    IMPRECISE = "imprecise"  # the rounding errors are larger than the accumulator's type explains
    OUT_OF_BOUNDS = "out_of_bounds"  # it touched memory that it must not touch
    IMPLAUSIBLE = "implausible"  # faster than the device can be


CLOCKED = frozenset({Status.COMPILE_TIMEOUT, Status.TIMEOUT, Status.IMPLAUSIBLE})
"""Failures that a clock decided. With more time, or on a calmer machine, the same candidate may succeed. So no cache
keeps them, and the candidate is judged again when it is asked for. An archive may hold them."""


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to the compiled code of one kernel of a source. They are applied in order to what the compiler wrote.

    `kernel` is the function's name in the cubin. `sha256` is the hex digest of its code (section `.text.KERNEL`) as the
    compiler wrote it, because positions mean nothing in other code. Each move counts positions in the code that the
    moves before it left. Without moves the code stays as it is.
    """

    kernel: str
    sha256: str
    moves: tuple[Shift | Control, ...] = ()

    @property
    def name(self) -> str:
        """One line for people, such as `edit 0f3a5b7c91d2: 3 moves in gemm`."""
        count = len(self.moves)
        return f"edit {digest(to_json(self))[:12]}: {count} move{'s' * (count != 1)} in {self.kernel[:60]}"


class Measured(msgspec.Struct, frozen=True):
    """How an edited kernel compares with the unedited one, next to which it was checked and timed.

    If `status` is ok, `speedup` is the median of `pairs` ratios (the unedited kernel's time divided by the edited
    one's), with an interval from `low` to `high`. Otherwise `reason` says what went wrong.
    """

    status: Status
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    pairs: int = 0
    reason: str = ""


class Binary(msgspec.Struct, frozen=True):
    """The files of a built kernel. Each is a path and the SHA-256, in hex, of the file's contents.

    On a processor `code` is a shared object, and there is no `recipe`. On a GPU `code` is a cubin, and `recipe`
    describes the launches of its kernels. If the source has an edit, `code` contains it.
    """

    code: tuple[str, str]
    recipe: tuple[str, str] | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of each file. They do not depend on where the files are."""
        return tuple(sha256 for _, sha256 in filter(None, (self.code, self.recipe)))


Abi = Literal["contract", "cuda-l2"]
"""Which entry point a source defines: the contract's `hgemm`, or that of CUDA-L2's published kernels."""


class Candidate(msgspec.Struct, frozen=True):
    """One complete source, to be judged on one problem.

    Where an author gave none, `source` is "" and `missing` says why (see `completion`). With an `edit`, its compiled
    code is changed before it is judged. With a `binary`, nothing is compiled: the binary is judged as it is.
    """

    source: str
    problem: Problem
    target: str = "cpu"
    abi: Abi = "contract"
    edit: Edit | None = None
    binary: Binary | None = None
    missing: str = ""

    @property
    def key(self) -> str:
        """Hex digest of all that the author chose: source or what is missing, problem, target, ABI, edit and binary."""
        foreign = () if self.abi == "contract" else (self.abi,)
        edited = () if self.edit is None else ("edit", to_json(self.edit))
        binary = () if self.binary is None else ("binary", *self.binary.digests)
        missing = ("missing", self.missing) if self.missing else ()
        return digest(self.source, self.problem.name, self.target, *foreign, *edited, *binary, *missing)

    @property
    def kernel_hash(self) -> str:
        """Hex digest of what runs, which does not depend on the problem: of source and edit, or of the binary alone.

        That a binary was built from `source` is only a claim, so its verdict must not count as that source's.
        """
        if self.binary:
            return digest("binary", *self.binary.digests)
        return kernel_hash(self.source, self.edit)

    @property
    def archivable(self) -> bool:
        """Whether source and edit alone say what is judged. An archive knows nothing else of a kernel."""
        return self.binary is None and self.abi == "contract"


class Environment(msgspec.Struct, frozen=True):
    """Where a verdict was reached. Two verdicts can be compared only if their fingerprints are equal."""

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

    def differences(self, here: "Environment") -> str:
        """For people: the fields in which this environment differs from `here`, each with both values."""
        pairs = ((name, getattr(self, name), getattr(here, name)) for name in self.__struct_fields__)
        return "; ".join(f"{name}: {there}, here {now}" for name, there, now in pairs if there != now)


STRICT = 0.95
"""Decisions, such as which exported kernels are dispatched, rest only on intervals of at least this confidence."""


class Timing(msgspec.Struct, frozen=True):
    """A candidate's time beside one baseline's under one protocol.

    Times are medians, in microseconds per call. `speedup` is the median of `pairs` ratios (the baseline's time divided
    by the candidate's, measured right after one another), where each time is that of a block of `calls`. The true
    speedup lies between `low` and `high` with at least this `confidence`; records of earlier versions do not state it
    (0). If `paired` is False, the candidate was timed beside another baseline, and the figures were converted by the
    ratio of the two baselines, which was measured earlier, in rounds. Then the interval is wider by that of the ratio
    (from the least round to the greatest), and `confidence` is that of the figure that was converted; n rounds take
    2^(1-n) from it. It is 0 where the ratio is an estimate.
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


REASON = 400
"""A reason has at most so many characters, because a kernel's author can influence it: by an exception that the
launcher throws, for example."""


def plain(text: str) -> str:
    """A reason as it is stored and shown: one short line of printable characters."""
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= REASON else f"{line[:REASON]} …"


OCCUPANCY, CONFLICTS, STALL = "occupancy_pct", "bank_conflicts", "stall_"
"""Names in a verdict's `counters`: two whole ones, and the beginning of those that count why warps wait."""


class Verdict(msgspec.Struct, frozen=True):
    """What the worker found out about one candidate.

    `reason` says why a candidate failed. `timings` begin with the fastest baseline. They are empty for a failure, and
    where `worker.protocols` asks for no timing.

    `rho` is the root of the mean squared error, in units of that of a perfect result rounded to fp16 (1.0 is perfect);
    `max_error` is the largest absolute error. A failure has both if the check that computes them was reached.
    `repeatable` says whether the same call, made again, gave the same bits. It is None if any call before that one
    failed; if only the repeated call was wrong, it is False.

    `log` is the compiler's output, truncated and safe to show in a prompt. `seconds` is wall time by stage; `cached`
    means that the verdict was recalled and no time was spent. `machine` tells the device from others of the same kind;
    records of earlier versions do not name it (""). `counters` are the hardware's counters of one call, by name
    (worker/cuda/counters.py). They are empty unless `worker.counters` asks for them and the device gives them.
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
    machine: str = ""
    counters: dict[str, float] = {}

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def timing(self) -> Timing | None:
        """The timing against the fastest baseline, which rewards and rankings use. None where nothing was timed."""
        return self.timings[0] if self.timings else None

    @property
    def speedup(self) -> float | None:
        """The median speedup over the fastest baseline. None where nothing was timed."""
        return self.timing.speedup if self.timing else None


def digest(*parts: str) -> str:
    """SHA-256 in hex over the parts. Each is preceded by its length, so the same text split elsewhere differs."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode()
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def kernel_hash(source: str, edit: Edit | None = None) -> str:
    """Hex digest that tells kernels apart: of the source, and of the edit of its compiled code, if there is one."""
    return digest(source) if edit is None else digest(source, to_json(edit))


def to_json(record: msgspec.Struct) -> str:
    """The record as one line of JSON."""
    return msgspec.json.encode(record).decode()


def verdict_from_json(text: str | bytes) -> Verdict:
    """The Verdict that `to_json` wrote. Raises msgspec.DecodeError where the text is not one."""
    return msgspec.json.decode(text, type=Verdict)


def edit_from_json(text: str | bytes) -> Edit:
    """The Edit that `to_json` wrote. Raises ValueError, with an example, where the text is not one."""
    try:
        return msgspec.json.decode(text, type=Edit)
    except msgspec.MsgspecError as error:
        example = '[["shift",12,40],["control",40,"stall",5]]'
        raise ValueError(f"not an edit: {error}; write kernel, sha256 and moves such as {example}") from error
