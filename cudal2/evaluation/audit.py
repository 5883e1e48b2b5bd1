"""An audit of published kernels: how many are right, and why the others are not.

It sorts the rows of an evaluation (`cudal2 eval RUN source=FOLDER abi=cuda-l2`) by verdict. Verdicts are by our
contract: matrices of exactly the problem's shape, sums in the precision that was asked for, fresh inputs in each call.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from cudal2.evaluation import tables
from cudal2.evaluation.records import NOTHING_ARCHIVED, Row, why
from cudal2.problem import grid
from cudal2.records import Status

RIGHT, RACING, UNJUDGED = "right", "racing", "not judged"
MEANINGS = {
    RIGHT: "in every single call and in every timed one",
    Status.IMPRECISE: "more error than the rounding of such sums explains, in single calls already",
    RACING: "right in single calls, not in repeated or timed ones: a race, or state that one call leaves to the next",
    Status.WRONG: "wrong values in single calls",
    Status.OUT_OF_BOUNDS: "wrote where it must not",
    Status.LAUNCH_ERROR: "the launch failed, or the kernel crashed",
    Status.TIMEOUT: "did not end in time",
    Status.IMPLAUSIBLE: "faster than the device can be",
    Status.PLAN_ERROR: "its host code does more than enqueue kernels, or nothing",
    Status.COMPILE_ERROR: "does not compile",
    Status.COMPILE_TIMEOUT: "does not compile in time (worker.compile_seconds)",
    Status.REJECTED: "its source, or what it compiles to, is not allowed",
    Status.NO_SOURCE: "an empty file, one that is not UTF-8, or an answer without a kernel",
}
"""The kinds of results in the order in which they are listed, and what each means."""
Z = statistics.NormalDist().inv_cdf(0.975)


class Part(msgspec.Struct, frozen=True):
    """How many kernels are of a kind; their share, with a 95% interval where these are a sample of more."""

    kind: str
    meaning: str
    count: int
    share: float
    low: float
    high: float


def kind(row: Row) -> str:
    """One of MEANINGS: the status; failures after right single calls have a kind of their own. UNJUDGED where the judge
    cannot do what the kernel needs, such as offering both forms of B."""
    if row.status == Status.OK:
        return RIGHT
    if row.status == Status.REJECTED and row.reason in row.notes:
        return UNJUDGED
    late = row.repeatable is not None and row.status in (Status.WRONG, Status.IMPRECISE)
    return RACING if late else row.status


def judged(rows: Iterable[Row]) -> list[Row]:
    """The rows with a kernel that could be judged."""
    return [row for row in rows if row.status != NOTHING_ARCHIVED and kind(row) != UNJUDGED]


def unjudged(rows: Iterable[Row]) -> list[Row]:
    """The rows whose kernel the judge cannot judge, through no fault of the kernel, in order."""
    return sorted((row for row in rows if kind(row) == UNJUDGED), key=lambda row: row.problem)


def parts(rows: Sequence[Row]) -> list[Part]:
    """Every kind that occurs. Rows of the whole grid are no sample, so there the interval is just the share."""
    whole = {problem.mnk for problem in grid()} <= {row.problem.mnk for row in rows}
    rows = judged(rows)
    counts = Counter(map(kind, rows))
    listed = []
    for name, meaning in MEANINGS.items():
        if count := counts[name]:
            share = count / len(rows)
            interval = (share, share) if whole else wilson(count, len(rows))
            listed.append(Part(str(name), meaning, count, share, *interval))
    return listed


def wilson(count: int, of: int) -> tuple[float, float]:
    """The 95% interval of a share (E. B. Wilson, JASA 22, 1927): it holds for few, and for none or all of them too."""
    share, spread = count / of, Z * Z / of
    middle = share + spread / 2
    half = Z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return min(max(low, 0.0), share), max(min(high, 1.0), share)


def failures(rows: Sequence[Row]) -> list[Row]:
    """The rows that are not right, by kind, the greatest error first."""
    order = {name: place for place, name in enumerate(MEANINGS)}
    failed = [row for row in judged(rows) if kind(row) != RIGHT]
    return sorted(failed, key=lambda row: (order[kind(row)], -(row.rho or 0.0), row.problem))


def half_sum(row: Row) -> float:
    """ρ that a tensor core's fp16 accumulator gives for that K if it holds the whole sum (see `worker.verify`)."""
    return math.sqrt(row.problem.k / 32 + 0.5)


def text(rows: Sequence[Row]) -> str:
    """How many of each kind, those that are not right with their reasons, and the speeds, in Markdown; "" of none."""
    shares = parts(rows)
    if not shares:
        return ""
    lines = [["verdict", "kernels", "share"]]
    for part in shares:
        interval = "" if part.low == part.high else f" [{part.low:.1%}, {part.high:.1%}]"
        lines.append([f"{part.kind}: {part.meaning}", str(part.count), f"{part.share:.1%}{interval}"])
    whole = judged(rows)
    asides = {
        "right, but not the same bits each time": [r for r in whole if kind(r) == RIGHT and r.repeatable is False],
        "published for padded matrices": [r for r in whole if any("padded" in note for note in r.notes)],
    }
    said = "; ".join(f"{len(some)} are {what}" for what, some in asides.items() if some)
    sections = [f"{len(whole)} kernels judged{f'; {said}' if said else ''}.", tables.markdown(lines)]
    if failed := failures(rows):
        heading = "Not right (after ρ what it is when all of the sum is in fp16, on a tensor core):"
        sections.append("\n".join([heading, "", *map(_line, failed)]))
    if others := unjudged(rows):
        sections.append("\n".join([f"{len(others)} more were not judged:", "", *map(_line, others)]))
    if speeds := tables.text(whole):
        sections.append(speeds)
    return "\n\n".join(sections)


def _line(row: Row) -> str:
    error = f"ρ {row.rho:.3g} ({half_sum(row):.3g}) " if row.rho is not None else ""
    said = dict.fromkeys((why(row), *row.notes))
    return f"    {row.problem.name:<24} {kind(row):<15} {error:<18} {'; '.join(said)}"
