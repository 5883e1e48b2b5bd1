"""`cudal2 sass polish`: a game on a run's best kernel of each of many shapes; what wins joins the run's archive.

An evaluation then times the edited kernel beside the unedited one and all others, and an export ships what is fastest.
RUN/sass/SHAPE-KERNEL holds each game, KERNEL being the beginning of the kernel's hash: the same command continues it.

At the end of a game are a table, files, and on a GPU the winner and its parent in the archive (`finished`).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue

import msgspec

from cudal2 import interrupt, judging
from cudal2.archive import Archive
from cudal2.archive.records import Origin
from cudal2.archive.selection import Comparable
from cudal2.archive.store import ANY
from cudal2.config import SassConfig, identity, problems
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, Measured, Status, digest
from cudal2.sass import searches
from cudal2.sass.polish import run as games
from cudal2.sass.polish import subject
from cudal2.sass.polish.run import Found, noise, table
from cudal2.sass.polish.subject import Subject
from cudal2.worker.pool.processes import alone


def finished(
    subject: Subject,
    config: SassConfig,
    results: Sequence[Found],
    floor: Sequence[Measured],
    archive: Path | None = None,
) -> str:
    """Writes the results, RUN/compare.json above all; returns the table and a line on each file.

    A winner joins the archive in the folder `archive`, or else in the game's own.
    """
    folder = Path(config.run)
    record = {"judge": config.judge, "floor": floor, "found": results, "problem": subject.problem.name}
    (folder / "compare.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
    who = "the GPU" if config.judge == "gpu" else "the simulator, which is no GPU"
    lines = [
        f"{subject.listing.kernel} judged by {who}",
        table(results, floor),
        f"{folder}: METHOD/edit.json, compare.json",
    ]
    won = winner(results, noise(floor))
    if won is None:
        lines.append("no edit is surely faster than the unedited kernel")
    elif config.judge == "gpu" and subject.source is not None:
        lines.append(archived(subject, subject.source, config, won, archive or folder))
    return "\n".join(lines)


def best(results: Sequence[Found]) -> Found | None:
    """The search whose best edit has the greatest lower bound when confirmed; None where no edit was right."""
    right = [result for result in results if result.confirmed is not None and result.confirmed.status is Status.OK]
    return max(right, key=lambda result: result.confirmed.low if result.confirmed else 0.0, default=None)


def winner(results: Sequence[Found], aside: float) -> Found | None:
    """The `best`; None where its lower bound is not above 1 plus the A/A floor."""
    first = best(results)
    return first if first and first.confirmed and first.confirmed.low > 1.0 + aside else None


def archived(subject: Subject, source: str, config: SassConfig, won: Found, folder: Path) -> str:
    """Judges the winner and its parent like any candidates, so that the archive in `folder` holds both verdicts."""
    worker = msgspec.structs.replace(config.worker, devices=(0,))
    with alone(config.worker.devices[0]), judging.opened(folder, config.target, worker) as (archive, [pool]):
        environment = pool.environment().fingerprint
        name = digest(msgspec.json.encode(identity(config), order="sorted").decode(), source)[:16]

        def asked(index: int, edit: Edit | None) -> tuple[Candidate, Origin]:
            run = f"{config.target} {subject.problem.name} {name} {environment}"
            what = won.edit.name if edit and won.edit else "unedited"
            origin = Origin(kind="search", run=run, step=0, index=index, policy=f"sass {won.method}", prompt=what)
            return Candidate(source, subject.problem, config.target, edit=edit), origin

        verdicts = judging.judge(pool, archive, [asked(0, None), asked(1, won.edit)])
    said = [f"{v.speedup:.3f} × the best baseline" if v and v.speedup else "no verdict" for v in verdicts]
    return f"in the archive of {folder}: unedited {said[0]}, edited {said[1]}"


class Polished(msgspec.Struct, frozen=True):
    """What a game came to on one shape: its `best` edit of those that were found right, whether that `won` (its lower
    bound is above 1 by more than the A/A `floor`), and the lines to show. Where nothing could be played, only these."""

    problem: str
    said: str
    best: Found | None = None
    floor: float = 0.0
    won: bool = False


def played(folder: Path, config: SassConfig) -> list[Problem]:
    """The problems that the run in `folder` has a correct kernel for. ValueError where it has no archive."""
    with Archive.of(folder, create=False) as archive:
        return Comparable(archive, config.target, ANY).problems()


def run(
    folder: Path,
    problems: Sequence[Problem],
    config: SassConfig,
    methods: Sequence[str] = (),
    jobs: int = 1,
    tell: Callable[[Polished], None] = lambda polished: None,
) -> list[Polished]:
    """Plays on the best kernel that the run in `folder` has for each problem, by `methods` or else `search.method`.

    `jobs` games share each GPU of `worker.devices`: while one measures, the others compute. `tell` is called as each
    game ends. A kernel that cannot be played is a result that says why. Raises ValueError for fewer than one of `jobs`
    and for a method that is unknown or lacks its packages, HarnessFault where the harness fails: what was measured is
    kept.
    """
    if jobs < 1:
        raise ValueError(f"{jobs} games at a time play nothing; jobs is 1 or more")
    methods = tuple(methods) or (config.search.method,)
    for method in methods:  # told before anything is measured
        searches.find(method)
    polished = []
    # The processes end before the threads are waited for, or Ctrl-C would wait for the games that are under way.
    with ThreadPoolExecutor(jobs * len(config.worker.devices)) as threads, _processes(config, jobs) as free:

        def play(problem: Problem) -> Polished:
            device, executor = free.get()
            try:
                worker = msgspec.structs.replace(config.worker, devices=(device,))
                given = msgspec.structs.replace(config, worker=worker)
                return executor.submit(one, folder, problem, given, methods).result()
            finally:
                free.put((device, executor))

        try:
            for result in threads.map(play, problems):
                tell(result)
                polished.append(result)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return polished


def one(folder: Path, problem: Problem, config: SassConfig, methods: Sequence[str]) -> Polished:
    """The game on one problem, in this process."""
    config = msgspec.structs.replace(config, problem=problem.mnk, **problems.kind_keys(problem))
    try:
        kernel = subject.find(folder, config)
        place = folder / "sass" / f"{problem.name}-{digest(kernel.source or '')[:8]}"
        config = msgspec.structs.replace(config, run=str(place))
        results, floor = games.compare(kernel, config, methods)
    except ValueError as error:
        return Polished(problem.name, f"{problem.name}: {error}")
    said = f"{problem.name}: {finished(kernel, config, results, floor, archive=folder)}"
    aside = games.noise(floor)
    return Polished(problem.name, said, best(results), aside, winner(results, aside) is not None)


def summary(polished: Sequence[Polished]) -> str:
    """A line for each shape that was played, and how many won by how much."""
    lines = [f"{'shape':<28} {'speedup':>8} {'low':>8} {'high':>8} {'A/A ±':>7}  by"]
    for each in polished:
        if each.best and (at := each.best.confirmed):
            figures = f"{at.speedup:>8.4f} {at.low:>8.4f} {at.high:>8.4f} {each.floor:>7.4f}"
            lines.append(f"{each.problem:<28} {figures}  {each.best.method}{', won' if each.won else ''}")
    won, played = sum(each.won for each in polished), len(lines) - 1
    lines.append(f"{won} of {played} kernels are surely faster; {len(polished) - played} could not be played")
    return "\n".join(lines)


@contextmanager
def _processes(config: SassConfig, jobs: int) -> Iterator[SimpleQueue[tuple[int, interrupt.ProcessPool]]]:
    """`jobs` places for a game on each GPU. A process sees one GPU as long as it lives."""
    free: SimpleQueue[tuple[int, interrupt.ProcessPool]] = SimpleQueue()
    executors = []
    for device in config.worker.devices:
        for _ in range(jobs):
            made = interrupt.ProcessPool(1, get_context("spawn"), interrupt.leave_with_parent)
            executors.append(made)
            free.put((device, made))
    try:
        yield free
    finally:
        interrupt.end(*executors)
