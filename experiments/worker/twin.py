"""A candidate beside itself: what the harness alone says of two equal kernels, each on its side of the comparison.

    python experiments/worker/twin.py twin.jsonl 8_4096_4096,512_5120_14336      # on a GPU, about 40 s a problem

The kernel that the cost model likes most takes the baseline's place, in the referee's process on private memory, and is
judged in the runner as ever: 1.00 is right. So does A/A with the vendor's kernel (`cudal2 bench aa`), but by a mirror,
not by the runner; and by the referee itself on the shared buffers (`inside`). `torch` has the referee's private memory from torch's allocator, `mapped` as the candidate's is made:
by the driver's virtual memory management.
"""

import ctypes
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.problem import Problem, parse
from cudal2.records import Candidate
from cudal2.search.liked import most_liked
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build
from cudal2.worker.cuda.memory import SharedMemory
from cudal2.worker.cuda.vendor import side, split
from cudal2.worker.cuda.vendor.replay import Calls
from cudal2.worker.gpu import arena
from cudal2.worker.sandbox import jail
from cudal2.worker.worker import Worker

TARGET, REPEATS, SECONDS = "sm_90a", 3, 1.0
NAME = "cublas-tn"
"""Whose place the kernel takes."""

kept: list[SharedMemory] = []


def mapped(buffers, device: torch.device) -> tuple[Tensor, ...]:
    """`arena.private` with memory that is made as the candidate's is."""
    kept.append(SharedMemory(-(-buffers.workspace // (2 << 20)) * (2 << 20)))
    return arena.views(kept[-1].tensor, buffers)


def loaded(source: str, problem: Problem, folder: Path):
    """What enqueues the kernel in this process."""
    made = build.build(source, find(TARGET), Cache(folder), jail.choose(WorkerConfig().jail), seconds=300)
    library = folder / f"{problem.mnk}.so"
    library.write_bytes(made.library)
    hgemm, workspace = ctypes.CDLL(str(library)).hgemm, torch.zeros(257 << 20, dtype=torch.uint8, device="cuda")
    hgemm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 3 + [ctypes.c_void_p] * 2

    def enqueue(a: Tensor, b: Tensor, c: Tensor) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        pointers = (matrix.data_ptr() for matrix in (a, b, c))
        assert hgemm(*pointers, problem.m, problem.n, problem.k, workspace.data_ptr(), stream) == 0

    return enqueue


def put_beside(bench, problem: Problem, enqueue, seconds: float) -> None:
    """The kernel is the fastest baseline from now on."""
    context = bench.context(problem)
    sets = context.baseline.sets("tn")
    vendor = bench.vendor
    context.baseline._calls[NAME] = Calls(vendor._replayer, vendor._captured(enqueue, sets, keep=True), len(sets))
    for name in context.seconds:
        context.seconds[name] = seconds if name == NAME else 100 * seconds


def inside(bench, problem: Problem):
    """A/A on the shared buffers as by a mirror, but by this process."""
    context = bench.context(problem)
    context.arena.restore()
    memory, buffers = context.memory.tensor, context.arena.buffers
    *given, c = arena.views(memory, buffers)
    other = side.BaselineSide(bench.vendor, buffers, given, c, memory[: buffers.bytes // 2][-buffers.log_words :])
    own = [name for name in context.seconds if split(name)[1] == problem.layout]
    name = min(own, key=context.seconds.__getitem__)

    def run(history) -> tuple[float, float]:
        seconds = other.run(name, history)
        return seconds, seconds

    return bench._pair(run, context.seconds[name], context, 0, name)


def main(out: Path, names: str) -> None:
    plain = arena.private
    families = {family.name: family for family in corpus.families(find(TARGET))}
    config = WorkerConfig(cache=tempfile.mkdtemp(), timing_seconds=SECONDS)
    with Worker(config, TARGET) as worker, out.open("w") as lines:
        bench = worker.backend.bench

        def say(problem: Problem, memory: str, what: str, timing) -> None:
            row = {"problem": problem.mnk, "memory": memory, "what": what, "speedup": round(timing.speedup, 4)}
            row |= {"low": round(timing.low, 4), "high": round(timing.high, 4), "us": round(timing.candidate_us, 2)}
            print(json.dumps(row), file=lines, flush=True)

        for problem in map(parse, names.split(",")):
            first = next(iter(most_liked(TARGET, problem) or []))
            source = corpus.render(families[first.family], first.knobs, problem)
            sources = {
                (memory, repeat): f"{source}\n// {memory} {repeat}\n"
                for memory in ("torch", "mapped")
                for repeat in range(REPEATS + 1)
            }
            worker.begin_building([Candidate(text, problem, TARGET) for text in sources.values()])
            enqueue = loaded(source, problem, Path(config.cache))
            for memory, how in (("torch", plain), ("mapped", mapped)):
                while bench._contexts:
                    bench._contexts.popitem()[1].memory.close()
                arena.private = side.private = how
                for _ in range(REPEATS - 1):
                    say(problem, memory, "mirror", bench.compare_baseline_with_itself(problem))
                for _ in range(REPEATS):
                    say(problem, memory, "inside", inside(bench, problem))
                seconds = 0.0
                for repeat in range(REPEATS + 1):
                    verdict = worker.evaluate(Candidate(sources[memory, repeat], problem, TARGET))
                    if not verdict.timings:
                        print(
                            json.dumps(
                                {"problem": problem.mnk, "status": verdict.status.value, "log": verdict.log[-500:]}
                            ),
                            file=lines,
                            flush=True,
                        )  # noqa: E501
                        break
                    timing = verdict.timings[0]
                    if repeat == 0:
                        say(problem, memory, "beside the vendor", timing)
                        seconds = timing.candidate_us / 1e6
                        put_beside(bench, problem, enqueue, seconds)
                    else:
                        say(problem, memory, "twin", timing)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
