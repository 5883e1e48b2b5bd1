"""A candidate beside itself: what the harness alone says of two equal kernels, each on its side of the comparison.

    python experiments/worker/twin.py twin.jsonl 8_4096_4096,512_5120_14336      # on a GPU, about 15 s a problem

The kernel that the cost model likes most takes a baseline's place (`twin`), and is judged in the runner as ever: 1.00
is right. A/A with the vendor's kernel (`mirror`; `cudal2 bench aa`) says the same of a mirror, which is no runner. Each
of ALLOCATIONS times all buffers are made anew, and lie elsewhere.
"""

import ctypes
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.problem import Problem, parse
from cudal2.records import Candidate, Timing
from cudal2.search.liked import most_liked
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.bench import CudaBench
from cudal2.worker.cuda.compile import build
from cudal2.worker.cuda.vendor.replay import Calls
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

TARGET, ALLOCATIONS, REPEATS, SECONDS = "sm_90a", 2, 3, 1.0
NAME = "cublas-tn"
"""Whose place the kernel takes."""


def loaded(source: str, problem: Problem, folder: Path) -> Callable[..., None]:
    """What enqueues the kernel in this process."""
    made = build.build(source, find(TARGET), Cache(folder), jail.choose(WorkerConfig().jail), seconds=300)
    library = folder / f"{problem.mnk}.so"
    library.write_bytes(made.library)
    hgemm, workspace = ctypes.CDLL(str(library)).hgemm, torch.zeros(257 << 20, dtype=torch.uint8, device="cuda")
    hgemm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 3 + [ctypes.c_void_p] * 2

    def enqueue(*given: Tensor) -> None:
        stream, pointers = torch.cuda.current_stream().cuda_stream, (matrix.data_ptr() for matrix in given)
        assert hgemm(*pointers, problem.m, problem.n, problem.k, workspace.data_ptr(), stream) == 0

    return enqueue


def put_beside(bench: CudaBench, problem: Problem, enqueue: Callable[..., None], seconds: float) -> None:
    """The kernel is the fastest baseline from now on."""
    context, vendor = bench.context(problem), bench.vendor
    sets = context.baseline.sets("tn")
    context.baseline._calls[NAME] = Calls(vendor._replayer, vendor._captured(enqueue, sets, keep=True), len(sets))
    for name in context.seconds:
        context.seconds[name] = seconds if name == NAME else 100 * seconds


def main(out: Path, names: str) -> None:
    families = {family.name: family for family in corpus.families(find(TARGET))}
    config = WorkerConfig(cache=tempfile.mkdtemp(), timing_seconds=SECONDS)
    with Worker(config, TARGET) as worker, out.open("w") as lines:
        bench = worker.backend.bench

        def say(problem: Problem, what: str, timing: Timing) -> None:
            row = {"problem": problem.mnk, "what": what, "baseline": timing.baseline}
            row |= {name: round(getattr(timing, name), 4) for name in ("speedup", "low", "high", "candidate_us")}
            print(json.dumps(row), file=lines, flush=True)

        for problem in map(parse, names.split(",")):
            first = next(iter(most_liked(TARGET, problem) or []))
            source = corpus.render(families[first.family], first.knobs, problem)
            turns = [Candidate(f"{source}\n// {n}\n", problem, TARGET) for n in range(ALLOCATIONS * (REPEATS + 1))]
            worker.begin_building(turns)
            enqueue, rest = loaded(source, problem, Path(config.cache)), iter(turns)
            for _ in range(ALLOCATIONS):
                while bench._contexts:
                    bench._contexts.popitem()[1].memory.close()
                say(problem, "mirror", bench.compare_baseline_with_itself(problem))
                beside_the_vendor = worker.evaluate(next(rest)).timings[0]
                say(problem, "judged", beside_the_vendor)
                put_beside(bench, problem, enqueue, beside_the_vendor.candidate_us / 1e6)
                for _ in range(REPEATS):
                    say(problem, "twin", worker.evaluate(next(rest)).timings[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
