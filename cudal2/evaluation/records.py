"""The records of an evaluation: one row for each shape, and what rows come to: which kernels are surely faster, means,
shares won, machines."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import STRICT, Abi, Environment, Status, Timing, plain

NOTHING_ARCHIVED = "no kernel"
REASON = 300
"""Characters shown of why a kernel failed."""
WIDEST = 0.2
"""An interval wider than this share of its median is too uncertain to prefer a kernel."""
LONG_US, MARGIN = 1000.0, 0.05
"""Of longer calls the same kernel's speedup differs by 2.4% between two GPUs of one kind (a standard deviation; 27
kernels, experiments/h200/campaign/elsewhere.txt), where an interval is 1% wide. So twice that is asked of them."""


class Effort(msgspec.Struct, frozen=True):
    """How hard a row was measured: the keys of these names of the worker that reports (see `WorkerConfig`)."""

    batch_ms: float
    min_pairs: int
    max_pairs: int
    timing_seconds: float
    precision: float
    confidence: float
    host_calls: int
    server_qps: float
    compile_seconds: float
    run_seconds: float

    @staticmethod
    def of(worker: WorkerConfig) -> "Effort":
        return msgspec.convert(worker, Effort, from_attributes=True)

    def suffices(self, asked: "Effort", row: "Row") -> bool:
        """Whether `row`, measured with this effort, answers who asks for another: it is no less in anything.

        `host_calls` and `server_qps` say what is measured, not how well, so they must be equal where they were used. A
        failure was not timed: there the time that it was given counts.
        """
        if not row.timings:
            return self.compile_seconds >= asked.compile_seconds and self.run_seconds >= asked.run_seconds
        protocols = {timing.protocol for timing in row.timings}
        alike = {"offline": ("host_calls",), "server": ("host_calls", "server_qps")}
        names = {name for protocol in protocols for name in alike.get(protocol, ())}
        more = ("batch_ms", "min_pairs", "max_pairs", "timing_seconds", "confidence")
        return (
            all(getattr(self, name) == getattr(asked, name) for name in names)
            and all(getattr(self, name) >= getattr(asked, name) for name in more)
            and self.precision <= asked.precision
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one problem in one environment.

    `status` is the verdict's, or NOTHING_ARCHIVED. `kernel` is `Candidate.kernel_hash` of the kernel that was measured,
    `origin` the problem it was archived for, and `considered` the hashes of all kernels that it was chosen from.
    `binary` has the digests of the files if built code was measured and no source compiled. `reason`, `rho`,
    `max_error`, `repeatable` and `machine` are the verdict's; `notes` say how the judgement of a published kernel
    differs from its publication. `effort` says how hard it was measured; rows of earlier versions do not (None).
    """

    problem: Problem
    fingerprint: str
    status: str
    kernel: str = ""
    origin: Problem | None = None
    considered: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()
    abi: Abi = "contract"
    reason: str = ""
    rho: float | None = None
    max_error: float | None = None
    repeatable: bool | None = None
    machine: str = ""
    notes: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    effort: Effort | None = None

    @property
    def archived(self) -> bool:
        """Whether an archive holds the kernel that was measured: see `Candidate.archivable`."""
        return bool(self.kernel) and not self.binary and self.abi == "contract"

    @property
    def timing(self) -> Timing | None:
        """The timing against the fastest baseline; None unless the kernel is correct."""
        return self.timings[0] if self.timings else None

    @property
    def fastest(self) -> tuple[Timing, ...]:
        """The timing against the fastest baseline under each protocol."""
        protocols = dict.fromkeys(timing.protocol for timing in self.timings)
        alike = ([timing for timing in self.timings if timing.protocol == protocol] for protocol in protocols)
        return tuple(min(timings, key=lambda timing: timing.baseline_us) for timings in alike)


class Results(msgspec.Struct, frozen=True):
    """All rows of `eval/results.json`, and the environments they were measured in, by fingerprint."""

    environments: dict[str, Environment] = {}
    rows: tuple[Row, ...] = ()


def why(row: Row) -> str:
    """The verdict's reason in one line, without control characters, as a kernel's author can influence it."""
    return plain(row.reason)[:REASON]


class Summary(msgspec.Struct, frozen=True):
    """Statistics of the speedups of correct rows over the fastest baseline.

    `wins` is the share of rows whose median lies above 1, `sure_wins` of those that are `surely_faster`. `dispatched`
    is the geometric mean if all other rows count as 1.00, also those without a correct kernel, because in an exported
    library torch serves them.
    """

    shapes: int
    geomean: float
    dispatched: float
    wins: float
    sure_wins: float


def needed(timing: Timing) -> float:
    """What the interval must lie above for the kernel to be faster on other machines of the kind, too."""
    return 1 + (MARGIN if timing.baseline_us > LONG_US else 0.0)


def surely_faster(timing: Timing) -> bool:
    """Whether the interval lies above what is `needed`, is narrow and of STRICT confidence. A wide interval means that
    the machine was busy with something else, so its lower bound is not to be trusted either."""
    narrow = timing.high - timing.low <= WIDEST * timing.speedup
    return timing.low > needed(timing) and narrow and timing.confidence >= STRICT


def called(timings: Iterable[Timing]) -> str:
    """The name of their intervals: "95% intervals", by the lowest confidence; "intervals" where one states none.

    Of figures that were converted by an estimate nothing is stated, and they do not count.
    """
    least = min((timing.confidence for timing in timings if timing.paired or timing.confidence), default=0.0)
    return f"{least:.0%} intervals" if least else "intervals"


def summarise(rows: Sequence[Row]) -> Summary | None:
    """The statistics of the correct ones of `rows`; None where there is none."""
    timings = [row.timing for row in rows if row.timing]
    if not timings:
        return None
    count = len(timings)
    served = count + sum(row.status != Status.OK for row in rows)  # what is ok was timed, if against other baselines
    return Summary(
        shapes=count,
        geomean=math.exp(sum(math.log(t.speedup) for t in timings) / count),
        dispatched=math.exp(sum(math.log(t.speedup) for t in timings if surely_faster(t)) / served),
        wins=sum(t.speedup > 1 for t in timings) / count,
        sure_wins=sum(map(surely_faster, timings)) / count,
    )


def machines(results: Results) -> Counter[str]:
    """The number of rows by the machine that they were measured on, such as `NVIDIA H200, machine 0f3a5b7c`."""

    def name(row: Row) -> str:
        environment = results.environments.get(row.fingerprint)
        device = environment.device if environment else row.fingerprint
        return f"{device}, machine {row.machine or 'unknown'}"

    return Counter(name(row) for row in results.rows if row.status != NOTHING_ARCHIVED)
