"""Writes the best kernel of each evaluated shape as files that a program can use without the run.

    RUN/export/manifest.json        the kernels with their measured speeds; its schema and digest are beside it
    RUN/export/sources/HASH.cpp     the source as it was judged; .cu for a GPU
    RUN/export/sources/HASH.json    the edit of its built code, if the kernel has one

and for a processor

    RUN/export/libraries/HASH.so    built by the worker with the target's flags

or for a GPU, where no host code of a kernel's author is needed

    RUN/export/cubins/HASH.cubin        device code, edited if there is an edit
    RUN/export/recipes/PROBLEM.recipe   what is launched, for any addresses and each M (worker/cuda/recipe.py)
    RUN/export/lib/libcudal2.so         launches it; its header is in include, its CMake package in lib/cmake

and for torch

    RUN/export/lib/libcudal2_torch.so   torch.ops.cudal2, of whose sources src has a copy
    RUN/export/cudal2_kernels           a Python package, cudal2/exported: `pip install RUN/export`

Only kernels that an evaluation measured are exported: the archive's own figures selected the kernels, and therefore
flatter them. That was at one number of rows; where a kernel is for several, it is also timed at the first and the last
of them, and dispatched no further than it was surely faster there. `cudal2.runtime.load` loads the folder, which may be
copied anywhere.
"""

import hashlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from cudal2.archive import Archive
from cudal2.evaluation.records import Row, needed, surely_faster
from cudal2.evaluation.results import load
from cudal2.exported import processor
from cudal2.files import install
from cudal2.records import Candidate, Environment, HarnessFault, Timing, Verdict, to_json
from cudal2.runtime import op
from cudal2.runtime.manifest import File, Kernel, Layout, Manifest, Refused, Timed, write
from cudal2.target import Target, find
from cudal2.worker.backend import NotPortable, Portable, end_rows, good_rows

log = logging.getLogger(__name__)

DISPATCH_US = 3.0
"""What a call costs beside a processor's kernel, in microseconds. A call of an empty kernel takes 1.7, on a core of an
Intel Xeon where torch.nn.functional.linear takes 2.3 for 8×8×8."""

BUCKETS = 8, 16, 32, 64
"""The last numbers of rows of the ranges that one kernel is for: 1 to 8, 9 to 16, and so on. A kernel for more rows is
for its own number only."""

Builder = Callable[[Candidate], Portable]
"""Builds the exported form of a kernel; `builder` gives one. Raises NotPortable, HarnessFault.
Several threads call it at once."""


Judge = Callable[[Candidate], Verdict]
"""Checks and times a kernel as an evaluation does (`Worker.evaluate`)."""


def builder(portable: Callable[[Candidate, range], Portable], last: int = 0) -> Builder:
    """Builds by `worker.Worker.portable`, for the rows that `rows` gives."""
    return lambda candidate: portable(candidate, rows(candidate.problem.m, last))


def rows(m: int, last: int = 0) -> range:
    """The numbers of rows that a kernel measured for `m` is checked for: those of its bucket; with `last` all up to
    it."""
    if last:
        return range(1, last + 1) if m <= last else range(m, m + 1)
    first = 1
    for end in BUCKETS:
        if m <= end:
            return range(first, end + 1)
        first = end + 1
    return range(m, m + 1)


def run(
    folder: Path,
    archive: Archive,
    build: Builder,
    environment: Environment,
    *,
    target: str = "cpu",
    judge: Judge | None = None,
) -> Manifest:
    """Export what was evaluated in `environment` (this machine's) to `folder/export`, replacing a former export.

    `judge` times kernels at the ends of the rows that they are for; without it they are dispatched for all of these.

    Raises ValueError where nothing correct was evaluated in that environment, or no kernel can run without its author's
    host code; HarnessFault where a kernel cannot be built or the folder not be written. Then the former export stays.
    """
    measured = [row for row in load(folder).rows if row.timing]
    rows = [row for row in measured if row.fingerprint == environment.fingerprint]
    if not rows:
        raise ValueError(_nothing(folder, archive, measured, target))
    wanted = find(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export.") as scratch:
            new = Path(scratch) / "export"
            new.mkdir()
            rows.sort(key=lambda row: row.problem)
            refused = [Refused(problem=row.problem, reason=_why(row)) for row in rows if not row.archived]
            rows = [row for row in rows if row.archived]
            candidates = [
                Candidate(archive.source(row.kernel), row.problem, target, edit=archive.edit(row.kernel))
                for row in rows
            ]
            kernels = []
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                made = list(
                    threads.map(partial(_attempt, build), candidates)
                )  # nothing compiles while kernels are timed
            for row, candidate, built in zip(rows, candidates, made, strict=True):
                if isinstance(built, Refused):
                    refused.append(built)
                    continue
                assert row.timing is not None
                kernel = _written(new, row.kernel, candidate, built, row.timing, wanted)
                kernels.append(_timed(kernel, candidate, wanted, judge) if judge else kernel)
            if not kernels:
                raise ValueError(
                    f"no kernel evaluated in {folder} can be exported: {refused[0].problem.name}: {refused[0].reason}; "
                    "search these shapes for others, evaluate and export again"
                )
            manifest = Manifest(
                target=target,
                environment=environment,
                instructions=tuple(sorted(processor.instructions())) if not wanted.recipe else (),
                contract=Layout(wanted.contract.alignment, wanted.contract.semaphores),
                launcher=_launcher(new) if wanted.recipe else None,
                op=_op(new),
                kernels=tuple(kernels),
                refused=tuple(refused),
            )
            write(new, manifest)
            install(new, folder / "export", Path(scratch) / "former")
    except OSError as error:
        remedy = "Make room or the folder writable and export again: the former export stays"
        raise HarnessFault(f"cannot export to {folder}: {error}", remedy) from error
    return manifest


def _nothing(folder: Path, archive: Archive, rows: list[Row], target: str) -> str:
    """The message where all rows were measured in other environments, with the remedy."""
    known = archive.environments()
    others = sorted({archive.target(row.fingerprint) for row in rows if row.fingerprint in known})
    if others and target not in others:
        return (
            f"{folder} was evaluated for {', '.join(others)}, not for {target}; "
            f"add {' or '.join(f'target={other}' for other in others)}"
        )
    return f"{folder} holds no evaluated kernel for this machine; run `cudal2 eval` on it first"


def _why(row: Row) -> str:
    """Why a kernel without a source in the archive is not exported."""
    if row.binary:
        return "code that was measured as it was says nothing of any source"
    return "it is published for another entry point, behind which it is not exported"


def _attempt(build: Builder, candidate: Candidate) -> Portable | Refused:
    try:
        return build(candidate)
    except NotPortable as error:
        return Refused(problem=candidate.problem, reason=str(error))


def _written(
    folder: Path, name: str, candidate: Candidate, portable: Portable, timing: Timing, target: Target
) -> Kernel:
    """Writes the files of one problem's kernel, even if another problem shares them, and returns its record."""
    source, edit, recipe = f"sources/{name}{target.suffix}", "", None
    _file(folder, source, candidate.source.encode())
    if candidate.edit:
        edit = _file(folder, f"sources/{name}.json", to_json(candidate.edit).encode()).path
    if target.recipe:
        from cudal2.worker.cuda.recipe import seal

        code = _file(folder, f"cubins/{name}.cubin", portable.code)
        sealed = seal(portable.recipe, portable.code, f"{name}.cubin")
        recipe = _file(folder, f"recipes/{candidate.problem.name}.recipe", sealed)
    else:
        code = _file(folder, f"libraries/{name}.so", portable.code)
    return Kernel(
        problem=candidate.problem,
        source=source,
        code=code,
        recipe=recipe,
        timing=timing,
        dispatch=_worthwhile(timing, target),
        edit=edit,
        rows=portable.rows,
    )


def _timed(kernel: Kernel, candidate: Candidate, target: Target, judge: Judge) -> Kernel:
    """The record of a kernel that was timed at the ends of its rows, if it is dispatched for several. On a machine that
    is too busy to time it there, it is dispatched for its own number."""
    if not (kernel.rows and kernel.dispatch):
        return kernel
    own, timed = kernel.problem, []
    for m in end_rows(kernel.rows, own.m):
        try:
            verdict = judge(msgspec.structs.replace(candidate, problem=msgspec.structs.replace(own, m=m)))
        except HarnessFault as fault:
            log.warning("%s is not dispatched for %d rows, where it could not be timed: %s", own.name, m, fault)
            continue
        if verdict.timing:
            timed.append(Timed(m, verdict.timing))
    faster = [one.m for one in timed if _worthwhile(one.timing, target)]
    return msgspec.structs.replace(kernel, timed=tuple(timed), dispatch_rows=good_rows(kernel.rows, own.m, faster))


def _launcher(folder: Path) -> File:
    """Writes the library that launches a GPU's kernels, with its header and sources. Raises HarnessFault."""
    from cudal2.worker.cuda import launcher

    for path, text in launcher.sources().items():
        _file(folder, path, text.encode())
    return _file(folder, launcher.LIBRARY, launcher.library())


def _op(folder: Path) -> File:
    """Writes the library behind torch.ops.cudal2, its sources, and the package for pip. Raises HarnessFault."""
    for path, text in op.sources().items():
        _file(folder, path, text.encode())
    return _file(folder, op.LIBRARY, op.library())


def _file(folder: Path, path: str, content: bytes) -> File:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)
    return File(path, hashlib.sha256(content).hexdigest())


def left_to_torch(manifest: Manifest) -> Counter[str]:
    """The number of kernels that are not dispatched, by the reason in a few words."""
    target = find(manifest.target)
    return Counter(_against(kernel.timing, target) for kernel in manifest.kernels if not kernel.dispatch)


def _worthwhile(timing: Timing, target: Target) -> bool:
    return not _against(timing, target)


def _against(timing: Timing, target: Target) -> str:
    """Why a kernel is left to torch; "" where a user gains by it, the dispatcher's own time included.

    On a GPU our call costs the host less than torch's (`cudal2 bench call`), so there only the kernel's time counts.
    """
    if timing.low <= needed(timing):
        return "not surely faster"
    if not surely_faster(timing):
        return "measured too roughly"
    if not target.recipe and timing.candidate_us + DISPATCH_US >= timing.baseline_us:
        return f"less than {DISPATCH_US:g} µs faster"
    return ""
