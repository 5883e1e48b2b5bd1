"""The GPU as the judge of edits, with the check that it requires: which edits are harmless."""

from collections.abc import Iterator
from contextlib import contextmanager

from cudal2.problem import Problem
from cudal2.sass.legality import Legality
from cudal2.worker.cuda import plan
from cudal2.worker.cuda.backend import CudaBackend
from cudal2.worker.cuda.edits.bench import EditBench
from cudal2.worker.worker import Worker


@contextmanager
def opened(worker: Worker, parent: plan.CudaLaunchable, problem: Problem, jobs: int = 1) -> Iterator[EditBench]:
    """A bench for edits of `parent` (`edits.bench.parent_of` builds one) that lets only harmless ones onto the GPU.

    `jobs` processes check the edits of one `measure`. Raises as `EditBench` and `Legality` do.
    """
    if not isinstance(worker.backend, CudaBackend):
        raise ValueError(f"code of {worker.target.name} is not edited; choose a GPU's target, such as sm_90a")
    with (
        Legality(parent.cubin, worker.backend.kind, jobs) as legality,
        EditBench(worker, parent, problem, legality) as bench,
    ):
        yield bench
