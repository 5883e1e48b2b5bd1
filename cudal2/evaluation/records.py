"""The records of an evaluation: one row for each shape."""

import csv
import io
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from cudal2.config import WorkerConfig
from cudal2.problem import Problem
from cudal2.records import Abi, Environment, Timing, plain

NOTHING_ARCHIVED = "no kernel"
REASON = 300
"""Characters shown of why a kernel failed."""


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


PARQUET = find_spec("pyarrow") is not None
"""Whether Parquet can be written: datasets, which training needs, brings pyarrow."""

_SHAPE = Problem.__struct_fields__
_ROW = ("fingerprint", "machine", "status", "reason", "rho", "max_error", "repeatable", "kernel")
_SPEEDUP = ("speedup", "low", "high", "pairs", "paired", "confidence")
_TIMING = ("baseline", "protocol", "candidate_us", "baseline_us", *_SPEEDUP)
NAMES = (*_SHAPE, *_ROW, "binary", *_TIMING)
"""The columns, of Problem, Row and Timing. Those of a timing are empty where no kernel is right, and `binary`, the
SHA-256 of code that was measured as it was, where a source was compiled."""
_TYPES = dict.fromkeys(("m", "n", "k", "pairs"), "int64") | dict.fromkeys(("paired", "repeatable"), "bool")
_REAL = ("rho", "max_error", "candidate_us", "baseline_us", "speedup", "low", "high", "confidence")
_TYPES |= dict.fromkeys(_REAL, "float64")


def flat(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """One tuple, in the order of NAMES, for each row and timing; None for what is not there."""
    found = []
    for row in rows:
        code = next(iter(row.binary), None)
        head = (*msgspec.structs.astuple(row.problem), *(getattr(row, name) for name in _ROW), code)
        for timing in row.timings or (None,):
            found.append((*head, *(getattr(timing, name, None) for name in _TIMING)))
    return found


def as_csv(rows: Iterable[Row]) -> str:
    """The table as CSV, with a header line of NAMES."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(NAMES)
    table.writerows(flat(rows))
    return text.getvalue()


def as_parquet(rows: Sequence[Row]) -> bytes:
    """The table as Parquet, with types. Raises ImportError without pyarrow."""
    import pyarrow
    from pyarrow import parquet

    types = pyarrow.schema([(name, _TYPES.get(name, "string")) for name in NAMES])
    values = [list(column) for column in zip(*flat(rows))] or [[] for _ in NAMES]
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(values, schema=types), file)
    return file.getvalue()
