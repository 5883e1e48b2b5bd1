"""The best kernel of each evaluated shape as files that a program can use without the run they came from.

    RUN/export/manifest.json        what is there, and how fast it was measured to be
    RUN/export/sources/HASH.cpp     as the policy wrote it; .cu for a GPU
    RUN/export/sources/HASH.json    the edit of its built code, of a kernel that has one
    RUN/export/libraries/HASH.so    built by the worker with the target's flags, and edited

Only what an evaluation measured is exported: the archive's own figures selected the kernels and therefore
flatter them. `cudal2.runtime.load` uses the folder, which may be copied anywhere.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from cudal2 import processor
from cudal2.archive import Archive
from cudal2.evaluation.results import load, surely_faster
from cudal2.records import Candidate, Environment, HarnessFault, Timing, to_json
from cudal2.runtime.manifest import FILE, Kernel, Manifest
from cudal2.target import Target, find

DISPATCH_US = 9.0
"""What `cudal2.runtime` spends on a call beside a processor's kernel, in microseconds."""

ENQUEUE_US = 30.0
"""What it takes at most to put a GPU's kernel into its queue, in microseconds. An estimate with a margin, not measured:
the dispatcher's time on a processor, about 5 µs for a launch and as much for asking torch about devices and streams."""

Builder = Callable[[Candidate], bytes]
"""The shared object's bytes; `worker.Worker(config).build(candidate).library` is one."""


def run(folder: Path, archive: Archive, build: Builder, environment: Environment, *, target: str = "cpu") -> Manifest:
    """Export what was evaluated in `environment` (this machine's) to `folder/export`, in place of what was there.

    Raises ValueError where nothing correct was evaluated in that environment, HarnessFault where a library
    cannot be built or the folder cannot be written; the former export then stays.
    """
    rows = [row for row in load(folder).rows if row.timing and row.fingerprint == environment.fingerprint]
    if not rows:
        raise ValueError(f"{folder} holds no evaluated kernel for this machine; run `cudal2 eval` on it first")
    wanted = find(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export.") as scratch:
            new = Path(scratch) / "export"
            for name in ("sources", "libraries"):
                (new / name).mkdir(parents=True)
            digests: dict[str, str] = {}
            edits: dict[str, str] = {}
            kernels = []
            for row in sorted(rows, key=lambda row: row.problem):
                source, library = f"sources/{row.kernel}{wanted.suffix}", f"libraries/{row.kernel}.so"
                if row.kernel not in digests:
                    text, edit = archive.source(row.kernel), archive.edit(row.kernel)
                    built = _built(build, Candidate(text, row.problem, target, edit=edit))
                    digests[row.kernel] = hashlib.sha256(built).hexdigest()
                    (new / source).write_text(text)
                    if edit:
                        edits[row.kernel] = f"sources/{row.kernel}.json"
                        (new / edits[row.kernel]).write_text(to_json(edit))
                    (new / library).write_bytes(built)
                assert row.timing is not None
                kernels.append(
                    Kernel(
                        problem=row.problem,
                        source=source,
                        library=library,
                        sha256=digests[row.kernel],
                        timing=row.timing,
                        dispatch=_worthwhile(row.timing, wanted),
                        edit=edits.get(row.kernel, ""),
                    )
                )
            manifest = Manifest(
                target=target,
                environment=environment,
                instructions=tuple(sorted(processor.instructions())) if wanted.kind == "cpu" else (),
                kernels=tuple(kernels),
            )
            (new / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            _install(new, folder / "export", Path(scratch) / "former")
    except OSError as error:
        remedy = "Make room or the folder writable and export again: the former export stays"
        raise HarnessFault(f"cannot export to {folder}: {error}", remedy) from error
    return manifest


def _worthwhile(timing: Timing, target: Target) -> bool:
    """Whether a user gains by the kernel, the dispatcher's own time included.

    A GPU works while the host enqueues: the dispatcher's time is hidden behind a call of the baseline that takes
    the GPU longer than the dispatcher takes, and only there is the kernel's own time what counts.
    """
    if target.kind == "cuda":
        return surely_faster(timing) and timing.baseline_us > ENQUEUE_US
    return surely_faster(timing) and timing.candidate_us + DISPATCH_US < timing.baseline_us


def _built(build: Builder, candidate: Candidate) -> bytes:
    library = build(candidate)
    if not library:
        raise HarnessFault(
            f"a kernel verified for {candidate.problem.name} no longer compiles",
            "Has the compiler changed? Evaluate again, then export",
        )
    return library


def _install(new: Path, final: Path, former: Path) -> None:
    """Put `new` in the place of `final`; programs that hold the former libraries open keep them."""
    if final.exists():
        if not final.is_dir():
            raise NotADirectoryError(f"{final} is in the way")
        final.rename(former)
    try:
        new.rename(final)
    except OSError:
        if former.exists():
            former.rename(final)
        raise
    if former.exists():
        shutil.rmtree(former)
