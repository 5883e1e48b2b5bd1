"""What is handed from one stage to the next, as frozen records that go to JSON and back unchanged.

A bad kernel is data: every way a candidate can fail is a `Status`. A broken harness is a `HarnessFault`
with a remedy; it never becomes a verdict, so it never becomes a reward.
"""

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

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


Position = Annotated[int, msgspec.Meta(ge=0)]
"""Which instruction of a kernel, counted from 0 in the order of its code."""


class Shift(msgspec.Struct, frozen=True, array_like=True, tag="shift", forbid_unknown_fields=True):
    """The instruction at `start` is taken out and put in again at `end`; those between close up by one place.

    Neighbours change places by a shift of one. As JSON `["shift", 12, 40]`.
    """

    start: Position
    end: Position


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control", forbid_unknown_fields=True):
    """A field of the scheduling information of the instruction at `position` is set to `value`.

    As JSON `["control", 12, "stall", 5]`. `wait` is a mask of the six barriers; 7 as a barrier means none.
    """

    position: Position
    field: Literal["stall", "yield", "write_barrier", "read_barrier", "wait", "reuse"]
    value: Annotated[int, msgspec.Meta(ge=0)]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to the built code of one kernel of a source, replayed in their order on what the compiler wrote.

    `kernel` is the function's name in the cubin, `sha256` the hex digest of its code (section `.text.KERNEL`) as the
    compiler wrote it: positions mean nothing in other code. Later moves count positions as earlier ones left them.
    Without moves the code stays as it is.
    """

    kernel: str
    sha256: str
    moves: tuple[Shift | Control, ...] = ()

    @property
    def name(self) -> str:
        """For people, in one line: `edit 0f3a5b7c91d2: 3 moves in gemm`."""
        count = len(self.moves)
        return f"edit {digest(to_json(self))[:12]}: {count} move{'s' * (count != 1)} in {self.kernel[:60]}"


class Measured(msgspec.Struct, frozen=True):
    """What became of an edit beside the unedited kernel.

    `status` is ok, or what went wrong and `reason` says; only where ok is `speedup` the median of `pairs` ratios of the
    unedited kernel's seconds to the edited one's, with an interval from `low` to `high`.
    """

    status: Status
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    pairs: int = 0
    reason: str = ""


class Binary(msgspec.Struct, frozen=True):
    """Files that were built of a source, edited where it has an edit: of a processor's kernel `code`, a shared object;
    of a GPU's its cubin, and the `recipe` of its launches. Each is a path and the SHA-256, in hex, of what it holds.
    """

    code: tuple[str, str]
    recipe: tuple[str, str] | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """Of both files, wherever they lie."""
        return tuple(sha256 for _, sha256 in filter(None, (self.code, self.recipe)))


Abi = Literal["contract", "cuda-l2"]
"""Which entry point a source defines: the contract's `hgemm`, or that of CUDA-L2's published kernels."""


class Candidate(msgspec.Struct, frozen=True):
    """One complete source to be judged on one problem; where there is an `edit`, with its built code so changed.

    Where there is a `binary`, that is judged as it is, and nothing is compiled.
    """

    source: str
    problem: Problem
    target: str = "cpu"
    abi: Abi = "contract"
    edit: Edit | None = None
    binary: Binary | None = None

    @property
    def key(self) -> str:
        """Hex digest of everything the author chose: source, problem, target and edit; and its binary."""
        foreign = () if self.abi == "contract" else (self.abi,)
        edited = () if self.edit is None else ("edit", to_json(self.edit))
        binary = () if self.binary is None else ("binary", *self.binary.digests)
        return digest(self.source, self.problem.name, self.target, *foreign, *edited, *binary)

    @property
    def kernel_hash(self) -> str:
        """Hex digest of what runs, whatever the problem: of source and edit, or of the binary.

        Of which source a binary was built is only claimed, so that its verdict never counts as that source's.
        """
        if self.binary:
            return digest("binary", *self.binary.digests)
        return kernel_hash(self.source, self.edit)

    @property
    def archivable(self) -> bool:
        """Whether source and edit alone say what is judged, which is all that an archive knows of a kernel."""
        return self.binary is None and self.abi == "contract"


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

    def differences(self, here: "Environment") -> str:
        """For people: what is another in this one than `here`, each with both values."""
        pairs = ((name, getattr(self, name), getattr(here, name)) for name in self.__struct_fields__)
        return "; ".join(f"{name}: {there}, here {now}" for name, there, now in pairs if there != now)


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


REASON = 400
"""Characters of a reason at most. Whoever wrote a kernel may have a say in it: a launcher's exception, a directive."""


def plain(text: str) -> str:
    """A reason as it is kept and shown: one short line of what can be printed."""
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= REASON else f"{line[:REASON]} …"


OCCUPANCY, CONFLICTS, STALL = "occupancy_pct", "bank_conflicts", "stall_"
"""Of a verdict's `counters` two names, and how those begin that are of a reason to wait."""


class Verdict(msgspec.Struct, frozen=True):
    """What the worker found out about one candidate.

    `timings` is non-empty exactly when `status` is ok, fastest baseline first. `rho` is the error in units
    of the rounding of a perfect fp16 result (1.0 is perfect). `log` is compiler output, truncated, safe to
    show in a prompt. `seconds` says where the wall time went, by stage; `cached` that none was spent. A failure has
    `rho` and `max_error` where a check came to them; `repeatable` says whether the same call gave the same bits, and
    is None unless every single call was right but, where False, the last. `machine` names the device it was measured
    on, of two that are alike too; an earlier version did not say (""). `counters` are the hardware's by name, of one
    call (worker/cuda/counters.py), {} where `worker.counters` does not ask for them or none are to be had.
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


def kernel_hash(source: str, edit: Edit | None = None) -> str:
    """Hex digest that tells kernels apart: of the source alone, or of the source and an edit of its built code."""
    return digest(source) if edit is None else digest(source, to_json(edit))


def to_json(record: msgspec.Struct) -> str:
    """One line of JSON."""
    return msgspec.json.encode(record).decode()


def verdict_from_json(text: str | bytes) -> Verdict:
    """The Verdict that `to_json` wrote; msgspec.ValidationError where the text is not one."""
    return msgspec.json.decode(text, type=Verdict)


def edit_from_json(text: str | bytes) -> Edit:
    """The Edit that `to_json` wrote; ValueError where the text is not one."""
    try:
        return msgspec.json.decode(text, type=Edit)
    except msgspec.MsgspecError as error:
        example = '[["shift",12,40],["control",40,"stall",5]]'
        raise ValueError(f"not an edit: {error}; write kernel, sha256 and moves such as {example}") from error
