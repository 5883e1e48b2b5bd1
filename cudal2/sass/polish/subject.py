"""The kernel of a game, from a source, a cubin, a run's archive, or a folder with a cubin and its launch; and the judge
of its edits: the GPU, in pairs with the unedited kernel, or the simulator.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cudal2.archive import Archive
from cudal2.archive.selection import Comparable
from cudal2.archive.store import ANY
from cudal2.config import SassConfig, problems
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, HarnessFault, Measured, Status
from cudal2.sass.blocks import window
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.legality import Legality
from cudal2.sass.listing import Listing, Unlisted, read
from cudal2.sass.mining import kernels
from cudal2.target import find as target
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import foreign, plan
from cudal2.worker.cuda.compile import build
from cudal2.worker.pool import processes
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


if TYPE_CHECKING:
    from cudal2.worker.cuda.edit_bench import EditBench
    from cudal2.worker.cuda.plan import CudaLaunchable
    from cudal2.worker.worker import Worker


class Judge(msgspec.Struct, frozen=True):
    """`measure` is called many times a second, with an edit made of legal moves and the best known speedup, so that a
    poor edit need not be measured precisely. `again` measures one of the best more precisely. `confirm` checks that a
    winner is legal, however it was made, and measures it anew. `floor` measures the unedited kernel beside itself.
    Measurements in another `environment` do not compare."""

    measure: Callable[[Edit, float], Measured]
    again: Callable[[Edit], Measured]
    confirm: Callable[[Edit], Measured]
    floor: Callable[[], Measured]
    environment: str


@contextmanager
def opened(subject: Subject, config: SassConfig) -> Iterator[Judge]:
    """The judge that the configuration names.

    Raises ValueError where the kernel cannot be judged by it, HarnessFault where there is no GPU.
    """
    with Legality(subject.code, jail.choose(config.worker.jail)) as legality:
        if config.judge == "gpu":
            with _gpu(subject, config, legality) as judge:
                yield judge
        else:
            yield _simulator(subject, config, legality)


def _simulator(subject: Subject, config: SassConfig, legality: Legality) -> Judge:
    simulated, same = Simulated(subject.listing, config.machine), Measured(Status.OK, 1.0, 1.0, 1.0, 1)

    def measure(edit: Edit, best: float = 1.0) -> Measured:
        return simulated([edit])[0]

    def confirm(edit: Edit) -> Measured:
        why = legality.why_not(edit)
        return Measured(Status.REJECTED, reason=why) if why else measure(edit)

    return Judge(measure, measure, confirm, lambda: same, "simulator")


@contextmanager
def _gpu(subject: Subject, config: SassConfig, legality: Legality) -> Iterator[Judge]:
    from cudal2.worker.cuda.edit_bench import EditBench, parent_of
    from cudal2.worker.worker import Worker

    proven = set[Edit]()

    def legal(edits: Sequence[Edit]) -> Iterable[str]:
        return ("" if edit in proven else legality.why_not(edit) for edit in edits)

    with processes.alone(config.worker.devices[0]), Worker(config.worker, config.target) as worker:
        parent = subject.launchable
        if parent is None:
            if subject.source is None:
                raise ValueError(
                    "a cubin alone cannot be run: name its source, or a folder with kernel.cubin and launch.json, or "
                    "use judge=simulator"
                )
            parent = parent_of(worker, Candidate(subject.source, subject.problem, config.target))
            if parent.cubin != subject.code:
                raise HarnessFault("the compiler made another cubin of the same source", "Try again with worker.cache=")
        with EditBench(worker, parent, subject.problem, legal, config.effort) as bench:

            def measure(edit: Edit, best: float) -> Measured:
                proven.add(edit)  # it was made of legal moves; `confirm` checks a winner again
                return bench.measure([edit], best)[0]

            def confirm(edit: Edit) -> Measured:
                proven.discard(edit)
                return bench.confirm(edit)

            def floor() -> Measured:
                return bench.floor(thoroughly=True)

            yield Judge(measure, bench.again, confirm, floor, worker.environment.fingerprint)


@contextmanager
def bench(worker: "Worker", parent: "CudaLaunchable", problem: Problem, jobs: int = 1) -> "Iterator[EditBench]":
    """A bench for edits of `parent` (`edit_bench.parent_of` builds one) that lets only harmless ones onto the GPU.

    `jobs` processes check the edits of one `measure`. Raises as `EditBench` and `Legality` do.
    """
    from cudal2.worker.cuda.backend import CudaBackend
    from cudal2.worker.cuda.edit_bench import EditBench

    if not isinstance(worker.backend, CudaBackend):
        raise ValueError(f"code of {worker.target.name} is not edited; choose a GPU's target, such as sm_90a")
    with (
        Legality(parent.cubin, worker.backend.kind, jobs) as legality,
        EditBench(worker, parent, problem, legality) as opened,
    ):
        yield opened
