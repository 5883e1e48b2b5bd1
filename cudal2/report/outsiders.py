"""Kernels that no family renders: whether they beat the rendered ones for their shape, and how they differ.

A source counts as rendered where it equals the source of the nearest setting, letter for letter, without its plan (see
`cudal2.corpus.nearest`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cudal2.archive.records import Entry
from cudal2.archive.selection import Comparable
from cudal2.archive.store import Archive
from cudal2.corpus import Knobs, without_plan
from cudal2.corpus.nearest import Nearest, difference, nearest
from cudal2.files import replace
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Timing
from cudal2.search.proposer import Mutated, Setting, made
from cudal2.target import find

DEPTH = 64
"""How many of a problem's best kernels are looked at."""
FILE = "outsiders.json"


class Outsider(msgspec.Struct, frozen=True):
    """The best kernel of a problem that no family renders, and the rendering nearest to it.

    `kinds` are the mutations by which a search made it from its parent, if recorded. `refused` is the rule that
    refuses the nearest setting, "" where none does. `diff` is a unified diff from the rendering to the outsider, and
    `changed` the number of its changed lines.
    """

    timing: Timing
    kernel: str
    kinds: tuple[str, ...]
    family: str
    knobs: Knobs
    refused: str
    changed: int
    diff: str


class Row(msgspec.Struct, frozen=True):
    """One problem: its best rendered kernel and its best outsider (None where there is none among the best `looked_at`
    kernels). `ahead` is the number of outsiders that rank before the best rendered one."""

    problem: Problem
    looked_at: int
    ahead: int
    rendered: Timing | None
    outsider: Outsider | None

    @property
    def surely(self) -> bool:
        """Whether the outsider's interval lies above that of the best rendered kernel."""
        return bool(self.outsider and self.rendered and self.outsider.timing.low > self.rendered.high)


class Outsiders(msgspec.Struct, frozen=True):
    """The rows of one environment, by problem."""

    fingerprint: str
    rows: tuple[Row, ...]


def run(folder: Path) -> Outsiders:
    """Look for outsiders among the kernels of `folder` that were judged in its latest environment, and write them to
    `folder/outsiders.json`, where the report finds them.

    Takes up to a second for each kernel that does not say from which setting it comes. Raises ValueError where the
    archive is empty, HarnessFault where a file cannot be read or written.
    """
    with Archive.of(folder, create=False) as archive:
        environments = list(archive.environments())
        if not environments:
            raise ValueError(f"the archive in {folder} is empty; search or train first")
        outsiders = Outsiders(environments[-1], tuple(rows(archive, environments[-1])))
    path = folder / FILE
    try:
        replace(path, msgspec.json.encode(outsiders))
    except OSError as error:
        raise HarnessFault(
            f"{path} cannot be written: {error}", "Free disk space, or make the folder writable"
        ) from error
    return outsiders


def load(folder: Path, fingerprint: str) -> tuple[Row, ...]:
    """What `run` found in that environment; () where it was not run. HarnessFault where it cannot be read."""
    path = folder / FILE
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Outsiders) if path.exists() else None
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Move it aside") from error
    return saved.rows if saved and saved.fingerprint == fingerprint else ()


def rows(archive: Archive, fingerprint: str) -> list[Row]:
    """A row for each problem that has a correct and timed kernel."""
    kernels = Comparable(archive, archive.target(fingerprint), fingerprint)
    origins = _origins(archive)
    candidates = (row(kernels, problem, origins) for problem in kernels.problems())
    return [one for one in candidates if one.looked_at]


def row(kernels: Comparable, problem: Problem, origins: Mapping[str, Setting | Mutated]) -> Row:
    """The row of that problem. `origins` says how kernels were made, by hash."""
    # An edited kernel is what its source is, and then something else: it is neither.
    ranked = [one for one in kernels.ranked(problem, DEPTH) if one.edit is None and one.verdict.timing]
    target = find(kernels.target)

    rendered: Entry | None = None
    outsider: Outsider | None = None
    ahead = 0
    for entry in ranked:
        if rendered and outsider:
            break
        made_by = origins.get(entry.source_hash)
        begin = made_by.origin if isinstance(made_by, Mutated) else made_by
        known = (begin.family, begin.knobs) if begin else ("", None)
        place = nearest(entry.source, target, problem, *known)
        if place.is_it:
            rendered = rendered or entry
            continue
        ahead += rendered is None
        outsider = outsider or _outsider(entry, made_by, place)
    return Row(problem, len(ranked), ahead, rendered.verdict.timing if rendered else None, outsider)


def _outsider(entry: Entry, made_by: Setting | Mutated | None, place: Nearest) -> Outsider:
    timing = entry.verdict.timing
    assert timing
    kinds = made_by.kinds if isinstance(made_by, Mutated) else ()
    diff = "\n".join(difference(place.source, without_plan(entry.source)))
    where = place.family, place.knobs, place.refused, place.changed
    return Outsider(timing, entry.source_hash, kinds, *where, diff)


def _origins(archive: Archive) -> dict[str, Setting | Mutated]:
    """How kernels were made, by hash, as far as searches recorded it."""
    origins: dict[str, Setting | Mutated] = {}
    for sample in archive.samples("search"):
        try:
            origins[sample.source_hash] = made(sample.origin.prompt)
        except msgspec.DecodeError:  # by a policy, or from a folder
            continue
    return origins


def describe(rows: Sequence[Row]) -> str:
    """Text for people: how many outsiders win, then each winner and how it differs."""
    outside = [row for row in rows if row.outsider]
    ahead = [row for row in outside if row.ahead]
    sure = sum(row.surely for row in ahead)
    lines = [
        f"{len(rows)} shapes; {len(outside)} have a correct kernel that no family renders, {len(ahead)} have one as "
        f"their best, {sure} surely: its interval lies above that of the best rendered kernel"
    ]
    for row in sorted(ahead, key=lambda row: not row.surely):
        assert row.outsider
        before = f"{row.rendered.speedup:.3f}" if row.rendered else "none correct"
        lines += [
            "",
            f"{row.problem.name}  {_interval(row.outsider.timing)}, best rendered {before}; {row.ahead} outsiders ahead"
            f"{'; surely' * row.surely}",
            f"  kernel {row.outsider.kernel[:12]} near {row.outsider.family}: {_difference(row.outsider)}",
            *(f"  {line}" for line in row.outsider.diff.splitlines()),
        ]
    return "\n".join(lines)


def to_json(rows: Sequence[Row]) -> str:
    """The rows as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode()


def _interval(timing: Timing) -> str:
    return f"{timing.speedup:.3f} × [{timing.low:.3f}, {timing.high:.3f}]"


def _difference(outsider: Outsider) -> str:
    by = f" by {', '.join(outsider.kinds)}" if outsider.kinds else ""
    if outsider.changed:
        return f"{outsider.changed} lines changed{by}"
    return f"a setting that a rule refuses ({outsider.refused}){by}"
