"""What an evaluation found, shape by shape: the records of `RUN/eval/results.json`, kept and summarised.

Beside it stand the same figures as tables, `results.csv` and, where pyarrow is installed, `results.parquet`. While an
evaluation goes on, each row is added to `results.jsonl` as it is found, for a thousand of them take a while to write;
now and then, and in the end, all is written anew and the added rows go.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from cudal2.evaluation import columns
from cudal2.problem import Problem
from cudal2.records import STRICT, Abi, Environment, HarnessFault, Timing

NOTHING_ARCHIVED = "no kernel"
WIDEST = 0.2
"""An interval wider than this share of its median is no ground to prefer a kernel on."""
REASON = 300
"""Characters shown of why a kernel failed."""

_REMEDY = "Make room or the folder writable and evaluate again: finished shapes are kept"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one problem in one environment.

    `status` is the verdict's, or NOTHING_ARCHIVED. `kernel` is `Candidate.kernel_hash` of the kernel that was measured,
    and `origin` the problem it was archived for; `considered` the hashes of all kernels that it was chosen from.
    `binary` are the digests of the files that were measured as they were, without compiling any source. `reason`,
    `rho`, `max_error`, `repeatable` and `machine` are the verdict's; `notes` say where a published kernel is judged
    otherwise than it was published.
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

    @property
    def archived(self) -> bool:
        """Whether an archive holds what was measured: see `Candidate.archivable`."""
        return bool(self.kernel) and not self.binary and self.abi == "contract"

    @property
    def timing(self) -> Timing | None:
        """Against the fastest baseline; None unless the kernel is correct."""
        return self.timings[0] if self.timings else None

    @property
    def fastest(self) -> tuple[Timing, ...]:
        """Against the fastest baseline under each protocol."""
        protocols = dict.fromkeys(timing.protocol for timing in self.timings)
        alike = ([timing for timing in self.timings if timing.protocol == protocol] for protocol in protocols)
        return tuple(min(timings, key=lambda timing: timing.baseline_us) for timings in alike)


class Results(msgspec.Struct, frozen=True):
    """All rows of `eval/results.json`, and the environments they were measured in, by fingerprint."""

    environments: dict[str, Environment] = {}
    rows: tuple[Row, ...] = ()


class Summary(msgspec.Struct, frozen=True):
    """Of a set of correct rows: speedups over the fastest baseline.

    `wins` is the share of rows whose median lies above 1, `sure_wins` of those that are `surely_faster`.
    `dispatched` is the geometric mean where torch serves all the others, as it does in an exported library.
    """

    shapes: int
    geomean: float
    dispatched: float
    wins: float
    sure_wins: float


@contextmanager
def only_evaluation_of(folder: Path) -> Iterator[None]:
    """Held by whoever adds and saves rows there: two would each write over what the other has found.

    Raises ValueError where another process holds it, HarnessFault where the folder cannot be written.
    """
    with _writing(folder):
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        try:
            held = FileLock(folder / "eval" / ".lock").acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{folder} is being evaluated by another process; choose another run") from None
    with held:
        yield


def load(folder: Path) -> Results:
    """What `folder/eval` holds, rows added to `results.jsonl` included; nothing where there is none.

    Raises HarnessFault naming the file that cannot be read.
    """
    path, added = folder / "eval" / "results.json", _added(folder)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()
        path = added
        lines = added.read_bytes().split(b"\n")[:-1] if added.exists() else []  # the last one was torn, or is empty
        new = [msgspec.json.decode(line, type=Row) for line in lines]
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside and evaluate again") from error
    rows = {(row.problem, row.fingerprint): row for row in (*found.rows, *new)}
    return msgspec.structs.replace(found, rows=tuple(rows.values()))


def add(folder: Path, row: Row) -> None:
    """Keep one more row, from which moment on no end of the process loses it. HarnessFault where it cannot be kept."""
    rest = msgspec.json.encode(row) + b"\n"
    with _writing(folder), _added(folder).open("ab", buffering=0) as file:
        end = file.tell()
        try:
            while rest:  # a disk that fills up takes a part, and refuses the rest only when asked once more
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(end)  # the next row would join what is there of this one
            raise


def save(folder: Path, results: Results) -> None:
    """Write all files, each whole or not at all, rows added before included. HarnessFault where they cannot be."""
    with _writing(folder):
        place = folder / "eval"
        place.mkdir(parents=True, exist_ok=True)
        replace(place / "results.csv", columns.as_csv(results.rows).encode())
        if columns.PARQUET:
            replace(place / "results.parquet", columns.as_parquet(results.rows))
        replace(place / "results.json", msgspec.json.format(msgspec.json.encode(results), indent=1))
        _added(folder).unlink(missing_ok=True)


def _added(folder: Path) -> Path:
    return folder / "eval" / "results.jsonl"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HarnessFault(f"the results in {folder / 'eval'} cannot be written: {error}", _REMEDY) from error


def replace(path: Path, data: bytes) -> None:
    """Write the file whole or not at all: whoever is killed meanwhile leaves the old one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def why(row: Row) -> str:
    """The reason of its verdict in one line, without what a terminal would obey: authors have a say in it."""
    return "".join(letter for letter in " ".join(row.reason.split()) if letter.isprintable())[:REASON]


def machines(found: Results) -> Counter[str]:
    """On which machines, device by device, so many of the rows were measured: `NVIDIA H200, machine 0f3a5b7c`."""

    def name(row: Row) -> str:
        environment = found.environments.get(row.fingerprint)
        device = environment.device if environment else row.fingerprint
        return f"{device}, machine {row.machine or 'unknown'}"

    return Counter(name(row) for row in found.rows if row.status != NOTHING_ARCHIVED)


def surely_faster(timing: Timing) -> bool:
    """Whether the interval lies above 1, is narrow and of STRICT confidence. A wide one says that the machine was busy
    with something else, and then its lower bound says little too."""
    narrow = timing.high - timing.low <= WIDEST * timing.speedup
    return timing.low > 1 and narrow and timing.confidence >= STRICT


def called(timings: Iterable[Timing]) -> str:
    """What to call their intervals: "95% intervals" by the least confidence; "intervals" where one states none."""
    least = min((timing.confidence for timing in timings), default=0.0)
    return f"{least:.0%} intervals" if least else "intervals"


def summarise(rows: Sequence[Row]) -> Summary | None:
    """Over the correct ones of `rows`; None where there is none."""
    timings = [row.timing for row in rows if row.timing]
    if not timings:
        return None
    count = len(timings)
    return Summary(
        shapes=count,
        geomean=math.exp(sum(math.log(t.speedup) for t in timings) / count),
        dispatched=math.exp(sum(math.log(t.speedup) for t in timings if surely_faster(t)) / count),
        wins=sum(t.speedup > 1 for t in timings) / count,
        sure_wins=sum(map(surely_faster, timings)) / count,
    )


def by_decade(rows: Sequence[Row]) -> dict[int, Summary]:
    """A summary for each decade of work that has correct rows: key 8 is 1e8 to 1e9 FLOP."""
    decades = defaultdict(list)
    for row in rows:
        decades[row.problem.decade].append(row)
    found = {decade: summarise(decades[decade]) for decade in sorted(decades)}
    return {decade: summary for decade, summary in found.items() if summary}
