"""What an evaluation found, shape by shape: the records of `RUN/eval/results.json`, kept and summarised."""

import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from cudal2.problem import Problem
from cudal2.records import STRICT, Environment, HarnessFault, Timing

NOTHING_ARCHIVED = "no kernel"
WIDEST = 0.2
"""An interval wider than this share of its median is no ground to prefer a kernel on."""

_SPEEDUP = ("speedup", "low", "high", "pairs", "paired", "confidence")
_TIMING = ("baseline", "protocol", "candidate_us", "baseline_us", *_SPEEDUP)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one problem in one environment.

    `status` is the verdict's, or NOTHING_ARCHIVED. `kernel` is the hash of the kernel that was measured, of its source
    or of source and edit, and `origin` the problem it was archived for; `considered` the hashes of all kernels that it
    was chosen from.
    """

    problem: Problem
    fingerprint: str
    status: str
    kernel: str = ""
    origin: Problem | None = None
    considered: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()

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


def load(folder: Path) -> Results:
    """What `folder/eval/results.json` holds, nothing where there is none.

    Raises HarnessFault naming the file where it cannot be read.
    """
    path = folder / "eval" / "results.json"
    if not path.exists():
        return Results()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside and evaluate again") from error


def save(folder: Path, results: Results) -> None:
    """Write both files, each whole or not at all. Raises HarnessFault where they cannot be written."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("m", "n", "k", "layout", "accumulate", "fingerprint", "status", "kernel", *_TIMING))
    for row in results.rows:
        head = (*msgspec.structs.astuple(row.problem), row.fingerprint, row.status, row.kernel)
        for timing in row.timings or (None,):
            table.writerow((*head, *(getattr(timing, name, "") for name in _TIMING)))
    try:
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        replace(folder / "eval" / "results.csv", text.getvalue().encode())
        replace(folder / "eval" / "results.json", msgspec.json.format(msgspec.json.encode(results), indent=1))
    except OSError as error:
        remedy = "Make room or the folder writable and evaluate again: finished shapes are kept"
        raise HarnessFault(f"the results in {folder / 'eval'} cannot be written: {error}", remedy) from error


def replace(path: Path, data: bytes) -> None:
    """Write the file whole or not at all: whoever is killed meanwhile leaves the old one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


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
        decades[int(math.log10(row.problem.flop))].append(row)
    found = {decade: summarise(decades[decade]) for decade in sorted(decades)}
    return {decade: summary for decade, summary in found.items() if summary}
