"""Which of cuBLASLt's algorithms is fastest on a problem.

Each is timed briefly, on few sets of matrices and L2-cold; the best few are `finalists`. Which of them is the fastest
is decided where the baselines' published seconds are measured, in the same rounds and on all sets (`in_turn`): one that
is fast on a few cold sets may be 20% slower on all of them than the library's own first choice.
"""

import logging
import statistics
import time
from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeVar

import torch
from nvmath.bindings import cublasLt
from torch import Tensor

from cudal2.problem import Problem
from cudal2.worker import timing
from cudal2.worker.cuda.vendor.hosttime import Set
from cudal2.worker.cuda.vendor.lt import Algorithm, Plan
from cudal2.worker.cuda.vendor.replay import DeviceClock, Enqueue

log = logging.getLogger(__name__)

Name = TypeVar("Name", bound=Hashable)

REQUESTED = 100
"""Algorithms tuned over, as CUDA-L2 does (arXiv:2512.02551)."""
WITHOUT = 16
"""Of those that need no workspace so many beside: allowed 32 MiB, the library may leave out what is faster without. On
an H200 one of them took 0.84 of the time at 1 to 16 rows of 3584×3584, which no other workspace brought up."""
QUICK_SECONDS, QUICK_CALLS, QUICK_BATCH = 3.0, 32, 0.3e-3
"""The pass over all of them: wall time after which no further one is tried (the library's order is a good guess),
most calls in a graph, and the device time a graph is filled up to."""
HOPELESS, GRACE = 3.0, 20e-3
"""An algorithm whose first call took so many times the best's and so many seconds more is not timed."""
FINALISTS = 5
ROUNDS = 7
"""All baselines and finalists are measured in turn, so often, lest a drift of the clocks favour one of them."""


def tolerance(problem: Problem) -> float:
    """Largest relative RMS difference between two right results on zero-mean random inputs.

    Rounding is a unit/√3 at most, 2⁻¹¹/√3 in fp16; accumulating in fp16 multiplies it by about √(K/32 + ½). Two results
    differ by √2 of that; three times as much is allowed.
    """
    growth = 1.0 if problem.accumulate == "f32" else (problem.k / 32 + 0.5) ** 0.5
    return 3 * 2**0.5 * problem.type.unit / 3**0.5 * growth


def difference(result: Tensor, reference: Tensor) -> float:
    """RMS(result − reference) / RMS(reference); NaN where either holds a NaN or an infinity."""
    norm = torch.linalg.vector_norm
    error = float(norm(result - reference, dtype=torch.float32))
    return error / (float(norm(reference, dtype=torch.float32)) or 1.0)


def candidates(plan: Plan) -> list[Algorithm]:
    """The library's first choice, then what it offers without a workspace and with one, in turn; each once."""
    offered = zip_longest(plan.heuristics(WITHOUT, workspace=0), plan.heuristics(REQUESTED))
    in_order = [plan.first(), *(one for pair in offered for one in pair if one)]
    return list({one.data: one for one in in_order}.values())


def shortlist(quick: dict[int, float]) -> list[int]:
    """The FINALISTS fastest, and number 0, the library's own first choice, which comes first."""
    return sorted({0, *sorted(quick, key=lambda number: quick[number])[:FINALISTS]})


def fastest(rounds: Mapping[int, Sequence[float]]) -> int:
    """The number with the smallest median; the library's order decides between equals."""
    return min(sorted(rounds), key=lambda number: statistics.median(rounds[number]))


def in_turn(clock: DeviceClock, graphs: Mapping[Name, torch.cuda.CUDAGraph], calls: int) -> dict[Name, list[float]]:
    """Seconds a call of each of these graphs in each of ROUNDS rounds; each graph has `calls`, one on every set.

    One more round goes ahead, which loads what a first replay must load.
    """
    rounds = [{name: clock.replay(graph) / calls for name, graph in graphs.items()} for _ in range(ROUNDS + 1)]
    return {name: [each[name] for each in rounds[1:]] for name in graphs}


def finalists(
    problem: Problem, clock: DeviceClock, sets: Sequence[Set], algorithms: Sequence[tuple[Algorithm, Enqueue]]
) -> list[tuple[Algorithm, Enqueue]]:
    """The few of `algorithms`, each with what enqueues it, that may be the fastest; the library's first choice is the
    first of both.

    All are timed briefly and L2-cold, until QUICK_SECONDS are over. One that fails, or whose result differs from the
    first's, is dropped.

    Raises ValueError where the inputs give no finite result, cuBLASLtError where the first algorithm fails.
    """
    ways = [enqueue for _, enqueue in algorithms]
    reference = clock.run(ways[0], sets[0]).clone()
    if difference(reference, reference) != 0:
        raise ValueError("A·B is not finite: tuning wants zero-mean inputs of moderate size")
    guess = clock.cold(clock.graph(ways[0], sets[:1]), 1)
    window = sets[: timing.calls_for(guess, QUICK_BATCH, QUICK_CALLS)]
    started, quick = time.perf_counter(), dict[int, float]()
    for number, enqueue in enumerate(ways):
        if quick and time.perf_counter() - started > QUICK_SECONDS:
            log.info("%s: tuned over the first %d of %d algorithms", problem.name, number, len(ways))
            break
        if _worth_timing(problem, clock, enqueue, sets[0], reference, min(quick.values(), default=guess)):
            quick[number] = clock.cold(clock.graph(enqueue, window), len(window))
    return [algorithms[number] for number in shortlist(quick)]


def _worth_timing(
    problem: Problem, clock: DeviceClock, enqueue: Enqueue, buffers: Set, reference: Tensor, best: float
) -> bool:
    """Whether an algorithm's first call succeeds, is right and is not hopelessly slow."""
    started = time.perf_counter()
    try:
        result = clock.run(enqueue, buffers)
    except cublasLt.cuBLASLtError as error:
        log.debug("%s: an algorithm of cuBLASLt fails: %s", problem.name, error)
        return False
    if time.perf_counter() - started > HOPELESS * best + GRACE:
        return False
    right = difference(result, reference) <= tolerance(problem)  # False for a NaN
    if not right:
        log.warning("%s: an algorithm of cuBLASLt gives a wrong result", problem.name)
    return right
