"""Exported kernels beside torch.matmul by the host's clock, both called from Python: `cudal2 bench call clocks=RUN`.

Under `offline` and `server` the judge calls kernels and the vendor's library from C, so it pairs nothing with
torch.matmul. Here `torch.ops.cudal2.matmul`, which is what a user calls, takes turns with torch.matmul on B in either
layout; where a kernel adds a bias, the two `linear` do. The loop, its pauses and the statistics are the judge's: blocks
of `worker.host_calls` calls, each with its synchronise and on inputs of its own, of which there are so many that the L2
holds only a part of them. The kernels may have been found on another GPU: a row says where it was measured, and nothing
is dispatched by it. One product of each is compared with torch's, for a folder does not prove that a judge has seen
what is in it.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.progress import track

from cudal2.config import BenchConfig, WorkerConfig
from cudal2.evaluation import folders, results
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.run import reporting_worker
from cudal2.exported.held import Kernel
from cudal2.exported.library import Library
from cudal2.overhead import cost
from cudal2.problem import stratified
from cudal2.records import Candidate, Status, Timing
from cudal2.target import find
from cudal2.worker import timing, verify
from cudal2.worker.cuda.pairing import gap_seconds
from cudal2.worker.cuda.vendor import hosttime
from cudal2.worker.gpu.buffers import buffer_layout
from cudal2.worker.measurement import next_start
from cudal2.worker.worker import Worker

PROTOCOLS = ("offline", "server")
HOST = "cpu"
"""The target whose calls have one clock."""
OURS = "ours"
NOT_SERVED = "torch served"
"""A row's status where the library handed a call on to torch."""

Call = Callable[[int], torch.Tensor]
"""A call on the inputs of that number, on torch's current stream."""


def run(folder: Path, out: Path, config: BenchConfig, accumulate: str = "f32", most: int = 50) -> list[Row]:
    """A row with timings over torch-nn and torch-tn for each of at most `most` kernels of an exported folder, a fair
    part of them, as carefully timed as `cudal2 eval` reports. They are added to the evaluation in `out`, and those that
    are there already are not measured again.

    Raises ValueError where the folder holds no export for the target, or `out` has other kernels; HarnessFault where
    the kernels cannot run on this machine or a file cannot be written.
    """
    if config.target == HOST:
        raise ValueError(
            "a processor's calls have one clock, and `cudal2 eval` times them beside torch's; leave clocks= out"
        )
    source = folders.exported(folder, config.target)
    library, measured = cost.opened(folder, accumulate, anywhere=True), reporting_worker(config.worker)
    with Worker(config.worker, config.target) as worker:
        environment = worker.environment
    kernels = {cost.problem(one): one for one in library.kernels}
    rows: list[Row] = []
    with results.only_evaluation_of(out):
        found = results.load(out)
        environments = found.environments | {environment.fingerprint: environment}
        all_rows = {(row.problem, row.fingerprint): row for row in found.rows}
        results.save(out, Results(environments, found.rows))
        try:
            for problem in track(
                stratified(list(kernels))[:most], "calls", console=Console(stderr=True), transient=True
            ):
                (candidate,) = source.find([problem])[problem]
                row = _row(candidate, environment.fingerprint, all_rows.get((problem, environment.fingerprint)))
                there = any(one.baseline.startswith("torch") and one.protocol in PROTOCOLS for one in row.timings)
                if row.status in ("", Status.OK) and not there:  # one that is wrong has no speed
                    row = _timed(row, library, kernels[problem], config.target, measured)
                    results.add(out, row)
                    all_rows[problem, row.fingerprint] = row
                rows.append(row)
        finally:
            results.save(out, Results(environments, tuple(all_rows.values())))
    return rows


def _row(candidate: Candidate, fingerprint: str, known: Row | None) -> Row:
    """The row to which timings are added. Raises ValueError where `known` is of another kernel."""
    if known is None:
        kernel, problem = candidate.kernel_hash, candidate.problem
        digests = candidate.binary.digests if candidate.binary else ()
        return Row(problem=problem, fingerprint=fingerprint, status="", kernel=kernel, origin=problem, binary=digests)
    if known.kernel != candidate.kernel_hash:
        raise ValueError(f"{known.problem.name} has another kernel in that evaluation; name another folder")
    return known


def _timed(row: Row, library: Library, kernel: Kernel, target: str, config: WorkerConfig) -> Row:
    """The row with the timings of the kernel; without any where torch served a call, or the product is wrong."""
    before = library.calls
    stream = torch.cuda.current_stream().cuda_stream
    with torch.no_grad():
        sides, slots = _sides(library, kernel)
        timings = [
            one
            for protocol in PROTOCOLS
            for one in paired(sides, slots, protocol, config, hosttime.stream_synchronise(), stream)
        ]
    if (library.calls - before).keys() != {"kernel"}:
        return msgspec.structs.replace(row, status=row.status or NOT_SERVED)
    result, expected = (sides[side](0)[None] for side in (OURS, f"torch-{kernel.layout}"))
    if finding := verify.check_timed(result, expected, row.problem, find(target).rounding):
        status, reason = finding
        return msgspec.structs.replace(row, status=status.value, reason=reason, timings=())
    return msgspec.structs.replace(row, status=row.status or Status.OK.value, timings=(*row.timings, *timings))


def _sides(library: Library, kernel: Kernel) -> tuple[dict[str, Call], int]:
    """Calls of the kernel and of torch on random inputs, and how many inputs there are: of matmul, or of linear where
    the kernel adds a bias. Each has memory of its own, which is aligned as kernels want it."""
    slots = buffer_layout(cost.problem(kernel)).sets
    matrices, weights, biases = zip(*(cost.operands(library, kernel, kernel.m) for _ in range(slots)))
    turned = [weight.t().contiguous().t() for weight in weights]
    stored = dict(zip(("nn", "tn") if kernel.layout == "nn" else ("tn", "nn"), (weights, turned)))
    own, name, biased = weights, library.id, biases[0] is not None
    matmul, linear, ours = torch.matmul, torch.nn.functional.linear, torch.ops.cudal2

    def torchs(weights: Sequence[torch.Tensor]) -> Call:
        if biased:
            return lambda number: linear(matrices[number], weights[number], biases[number])
        b = [weight.t() for weight in weights]
        return lambda number: matmul(matrices[number], b[number])

    def kernels() -> Call:
        if biased:
            return lambda number: ours.linear(matrices[number], own[number], biases[number], name)
        b = [weight.t() for weight in own]
        return lambda number: ours.matmul(matrices[number], b[number], name)

    return {OURS: kernels(), **{f"torch-{layout}": torchs(weights) for layout, weights in stored.items()}}, slots


def paired(
    sides: Mapping[str, Call], slots: int, protocol: str, config: WorkerConfig, synchronise: int, stream: int = 0
) -> list[Timing]:
    """The side OURS beside each of the others, which take turns in a new random order each round, on inputs 0 to
    `slots` - 1. `synchronise` is as in `hosttime.seconds`. The first round warms up. Raises as `hosttime.seconds`."""
    calls, gap = min(config.host_calls, slots), gap_seconds(config, protocol)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    others = [name for name in sides if name != OURS]
    first, started = 0, time.perf_counter()

    def block(call: Call, first: int) -> float:
        def one(number: int) -> None:
            call(first + number)

        seed = secrets.randbits(63)
        clock = {"synchronise": synchronise, "stream": stream, "gap_seconds": gap, "seed": seed}
        return sum(hosttime.seconds(one, [(0, 0, 0)] * calls, calls, **clock)) / calls  # type: ignore[arg-type]

    for call in sides.values():
        block(call, first)
    while not all(timing.enough(seconds[OURS], seconds[name], config, started) for name in others):
        first = next_start(first + calls, calls, range(slots))
        for name in random.sample(list(sides), len(sides)):
            seconds[name].append(block(sides[name], first))
    return [timing.summary(seconds[OURS], seconds[name], name, protocol, calls, config) for name in others]
