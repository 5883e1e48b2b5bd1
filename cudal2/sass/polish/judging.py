"""The judge of edits: the GPU, in pairs with the unedited kernel, or the simulator."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from cudal2.config import SassConfig
from cudal2.problem import Problem
from cudal2.records import Candidate, Edit, HarnessFault, Measured, Status
from cudal2.sass.game.simulator import Simulated
from cudal2.sass.legality import Legality
from cudal2.sass.polish.subject import Subject
from cudal2.worker.pool import processes
from cudal2.worker.sandbox import jail

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
