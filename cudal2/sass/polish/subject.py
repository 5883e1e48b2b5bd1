"""The kernel of a game: from a source, a cubin, a run's archive, or a folder with a cubin and its launch."""

from pathlib import Path

import msgspec

from cudal2.archive import Archive
from cudal2.archive.comparable import Comparable
from cudal2.archive.store import ANY
from cudal2.config import SassConfig, problems
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.sass.blocks import window
from cudal2.sass.listing import Listing, Unlisted, read
from cudal2.sass.mining import kernels
from cudal2.target import find as target
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import foreign, plan
from cudal2.worker.cuda.compile import build
from cudal2.worker.sandbox import jail


class Subject(msgspec.Struct, frozen=True):
    """A kernel as the compiler wrote it, and how to run it: by its `source` or as `launchable`; by neither where there
    is only a cubin."""

    code: bytes
    listing: Listing
    problem: Problem
    source: str | None = None
    launchable: plan.CudaLaunchable | None = None


def find(what: Path, config: SassConfig) -> Subject:
    """The kernel that `what` names: a source (.cu), a cubin, a folder with a cubin and its launch, a run's folder, of
    which the best unedited kernel for the problem is taken.

    Raises ValueError where there is none, or it cannot be compiled or listed, HarnessFault where the harness fails.
    """
    if not target(config.target).assembly:
        raise ValueError(f"code of {config.target} is not edited; choose a GPU's target, such as target=sm_90a")
    problem = problems.named(config.problem, config)
    if what.is_dir() and (what / foreign.LAUNCH).exists():
        problem, launchable = foreign.read(what)
        code = launchable.cubin
        return Subject(code, _listed(code, config), problem, launchable=launchable)
    if what.is_dir():
        source = _best(what, problem, config)
    elif what.suffix == ".cu":
        source = _text(what)
    else:
        code = _bytes(what)
        return Subject(code, _listed(code, config), problem)
    code = _compiled(source, config)
    return Subject(code, _listed(code, config), problem, source)


def _best(folder: Path, problem: Problem, config: SassConfig) -> str:
    with Archive.of(folder, create=False) as archive:
        known = Comparable(archive, config.target, ANY)
        entry = next((one for one in known.ranked(problem) if one.edit is None), None)
        if entry is None:
            there = ", ".join(one.name for one in known.problems()[:4]) or "none"
            raise ValueError(
                f"{folder} holds no correct kernel for {problem.name} on {config.target}; name a problem= and layout= "
                f"that it has ({there}), or a target="
            )
        return entry.source


def _compiled(source: str, config: SassConfig) -> bytes:
    worker = config.worker
    cache = Cache(Path(worker.cache).expanduser())
    made = build.build(source, target(config.target), cache, jail.choose(worker.jail), worker.compile_seconds)
    if made.status is not Status.OK:
        said = next((line for line in made.log.splitlines() if "error" in line), made.log.strip())
        raise ValueError(f"the source does not compile for {config.target}: {made.status} {said[:200]}; correct it")
    return made.cubin


def _listed(code: bytes, config: SassConfig) -> Listing:
    """The listing of the kernel that `config` names, else of the one with the most matrix instructions in its loops."""
    kind = jail.choose(config.worker.jail)
    if config.kernel:
        return read(code, config.kernel, kind)
    try:
        names = kernels(code)
    except ValueError as error:
        raise Unlisted(f"{error}; compile the kernel anew") from error
    if not names:
        raise Unlisted("the cubin holds no kernel: it is stripped or linked from nothing; compile the kernel anew")
    listings = [read(code, name, kind) for name in names]
    return max(listings, key=_matrix)


def _matrix(listing: Listing) -> int:
    try:
        return sum(loop.matrix for loop in window(listing).loops)
    except ValueError:  # no loop to play on
        return -1


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}; name a .cu, a .cubin or a folder of a run") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error}; name a .cu, a .cubin or a folder of a run") from error
