"""The kernels that a page shows: the best of each problem, their parents, then runners-up and failures."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from cudal2 import corpus
from cudal2.archive.records import Entry, Sample
from cudal2.archive.selection import Comparable
from cudal2.archive.store import Archive
from cudal2.config import WorkerConfig
from cudal2.evaluation.records import Row, why
from cudal2.problem import Problem
from cudal2.records import Edit, HarnessFault, Status, Timing, digest, kernel_hash
from cudal2.search.proposer import Mutated, answered, made
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.sandbox import jail

AT_MOST = 3000
"""The number of kernels to collect, the same for each problem."""
REASON = 500
"""Characters shown of why a kernel failed."""
LISTINGS = 40
"""The moved instructions are shown for so many edited kernels at most, as each must be compiled."""
FAILURES = tuple(status for status in Status if status is not Status.OK)


Origins = Mapping[tuple[str, Problem], Sample]
"""The sample by which each kernel was judged on each problem, by (hash, problem)."""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel and its verdict on one problem.

    `timing` is against the fastest baseline, None unless ok. `best` marks the kernel that the problem's figures are of.
    `parent` is the beginning of its parent's hash, "" where none is recorded; `how` says which policy or which
    mutations made it. `edit` names the edit of its built code, and `listing` shows the moved instructions. `machine` is
    the device it was measured on, "" where an earlier version did not record it.
    """

    hash: str
    problem: Problem
    status: str
    source: str
    timing: Timing | None = None
    best: bool = False
    family: str = ""
    how: str = ""
    parent: str = ""
    reason: str = ""
    edit: str = ""
    listing: str = ""
    machine: str = ""


def rows(archive: Archive, fingerprint: str) -> list[Row]:
    """The archive's best kernel of each problem, as rows of an evaluation."""
    kernels = Comparable(archive, archive.target(fingerprint), fingerprint)
    best = [(problem, kernels.best(problem)) for problem in kernels.problems()]
    return [
        Row(
            problem=problem,
            fingerprint=fingerprint,
            status=entry.verdict.status,
            kernel=kernel_hash(entry.source, entry.edit),
            timings=entry.verdict.timings,
            machine=entry.verdict.machine,
        )
        for problem, entry in best
        if entry and entry.verdict.timing
    ]


def of(archive: Archive, fingerprint: str, rows: Sequence[Row]) -> list[Kernel]:
    """The kernels to show beside the figures of `rows`: first the kernels of these rows, none twice.

    A kernel that is not archived has no source to show.
    """
    if fingerprint not in archive.environments():
        return []
    kernels = Comparable(archive, archive.target(fingerprint), fingerprint)
    samples = [sample for sample in archive.samples() if sample.fingerprint == fingerprint]
    origins = {(sample.source_hash, sample.problem): sample for sample in samples}
    best = list(_best(kernels, rows, origins))
    by_hash: dict[tuple[str, Problem], Kernel] = {}
    for kernel in chain(best, _parents(kernels, best, origins), _others(kernels, origins)):
        by_hash.setdefault((kernel.hash, kernel.problem), kernel)
    return list(by_hash.values())


def _best(kernels: Comparable, rows: Sequence[Row], origins: Origins) -> Iterator[Kernel]:
    """The kernels of the rows, the fastest first."""
    archive, listings = kernels.archive, LISTINGS
    for row in sorted(rows, key=lambda row: -row.timing.low if row.timing else 0.0):
        if not row.archived:
            continue
        source, edit = archive.source(row.kernel), archive.edit(row.kernel)
        listing = ""
        if edit and listings:
            listing, listings = moved(source, kernels.target, edit, WorkerConfig()), listings - 1
        kernel = Kernel(
            hash=row.kernel,
            problem=row.problem,
            status=row.status,
            source=source,
            timing=row.timing,
            best=True,
            reason=why(row),
            listing=listing,
            machine=row.machine,
        )
        yield _told(kernel, edit, kernels.target, origins)


def _parents(kernels: Comparable, children: Sequence[Kernel], origins: Origins) -> Iterator[Kernel]:
    """The parents of these kernels, each with its verdict in the search."""
    archive = kernels.archive
    samples = {sample.source_hash[:12]: sample for sample in origins.values()}
    for sample in (samples[child.parent] for child in children if child.parent in samples):
        verdict = archive.verdict(sample.origin)
        if verdict:
            entry = Entry(archive.source(sample.source_hash), verdict, archive.edit(sample.source_hash))
            yield _entered(entry, kernels.target, origins)


def _others(kernels: Comparable, origins: Origins) -> Iterator[Kernel]:
    """For each problem the fastest kernels, as many as fit, and a third as many of the latest failures."""
    problems = kernels.problems(list(Status))
    share = max(AT_MOST // max(len(problems), 1), 1)
    for problem in problems:
        for entry in kernels.ranked(problem, share):
            yield _entered(entry, kernels.target, origins)
    for problem in problems:
        for entry in kernels.latest(problem, FAILURES, max(share // 3, 1)):
            yield _entered(entry, kernels.target, origins)


def _entered(entry: Entry, target: str, origins: Origins) -> Kernel:
    verdict = entry.verdict
    kernel = Kernel(
        hash=kernel_hash(entry.source, entry.edit),
        problem=verdict.problem,
        status=verdict.status,
        source=entry.source,
        timing=verdict.timing,
        reason=(verdict.reason or verdict.log)[:REASON],
        machine=verdict.machine,
    )
    return _told(kernel, entry.edit, target, origins)


def _told(kernel: Kernel, edit: Edit | None, target: str, origins: Origins) -> Kernel:
    """The kernel with its lineage and its edit, as far as they are known."""
    lineage = _lineage(kernel.source, target, origins.get((kernel.hash, kernel.problem)))
    if edit:
        lineage |= {"edit": edit.name, "parent": digest(kernel.source)[:12]}
    return msgspec.structs.replace(kernel, **lineage)


def _lineage(source: str, target: str, sample: Sample | None) -> dict[str, str]:
    """Family, parent and maker, as far as the source or its proposer's record says."""
    said = corpus.stated(source, find(target))
    lineage = {"family": said[0] if said else ""}
    if sample is None:
        return lineage
    lineage["how"] = sample.origin.kind if sample.origin.kind != "search" else sample.origin.policy
    if turn := answered(sample.origin.prompt):
        lineage["parent"] = turn.parent[:12]
    try:
        begin = made(sample.origin.prompt)
    except msgspec.DecodeError:  # by a policy, or from a folder
        return lineage
    if isinstance(begin, Mutated):
        return lineage | {"family": begin.origin.family, "parent": begin.parent, "how": ", ".join(begin.kinds)}
    return lineage | {"family": begin.family}


def moved(source: str, target: str, edit: Edit, config: WorkerConfig) -> str:
    """The compiler's schedule and the edited one side by side; "" where this machine cannot compile the source to the
    code that was edited, or cannot disassemble it.
    """
    from cudal2.sass import text
    from cudal2.sass.listing import read
    from cudal2.worker.cuda.compile import build, cubin

    if not find(target).assembly:
        return ""
    try:
        kind = jail.choose(config.jail)
        made = build.build(source, find(target), Cache(Path(config.cache).expanduser()), kind, config.compile_seconds)
        if made.status is not Status.OK:
            return ""
        cubin.apply(made.cubin, edit)
        return text.changes(read(made.cubin, edit.kernel, kind), edit)
    except (HarnessFault, ValueError):
        return ""
