"""What a call of an exported kernel costs, beside torch's own: `cudal2 bench call`.

There are three figures, in microseconds per call, for torch and for the kernel: the host's time, until the call
returns; calls back to back, until the GPU has finished all of them; and calls in a CUDA graph. On a processor, where a
call has finished when it returns, there is only the second. Every kernel of the folder is called, also those that are
not dispatched, for these figures show whether that is right.

`settle` then dispatches a kernel only if none of its figures is worse than torch's.

The sides take turns, in a new random order each round, and each figure is the median over the rounds.
"""

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.progress import track

from cudal2 import operators
from cudal2.evaluation.records import surely_faster
from cudal2.exported.held import Kernel, Unusable
from cudal2.exported.library import Library
from cudal2.exported.op import PADDED
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.runtime import manifest

Call = Callable[[], Any]
Row = dict[str, Any]
ROUNDS, CALLS, FEWEST, SECONDS = 15, 100, 3, 0.003
"""A round has as many calls as take SECONDS, from FEWEST to CALLS. CALLS always fit into a GPU's queue of about a
thousand launches, so that no call waits for it."""
BATCH = 25
"""A folder is settled after so many kernels, so that whatever ends the command loses no more than these."""
LIMIT = 1.01
"""A kernel may take at most this much of torch's time; if it takes more, torch serves."""


def run(folder: Path, accumulate: str = "f32", count: int = 50) -> list[Row]:
    """A row for each of at most `count` kernels of an exported folder, small problems first.

    Raises ValueError where the folder holds no export, HarnessFault where its kernels cannot run on this machine.
    """
    library = opened(folder, accumulate)
    return [row for kernel in spread(library.kernels, count) for row in figures(library, kernel)]


def eligible(
    folder: Path, accumulate: str, may: Callable[[manifest.Kernel], bool] = lambda kernel: surely_faster(kernel.timing)
) -> tuple[Library, list[Kernel]]:
    """The kernels that `may` be dispatched, by default those that are surely faster than the vendor's: small problems
    first. Raises as `run`."""
    library = opened(folder, accumulate)
    problems = {kernel.problem for kernel in manifest.read(folder).kernels if may(kernel)}
    kernels = [kernel for kernel in library.kernels if problem(kernel) in problems]
    return library, spread(kernels, len(kernels))


def figures(library: Library, kernel: Kernel) -> list[Row]:
    """One row: those of calls with the kernel's own number of rows."""
    return [measured(library, kernel, kernel.m)]


def opened(folder: Path, accumulate: str, anywhere: bool = False) -> Library:
    """The library with every kernel of an exported folder, also for fewer rows and, with `anywhere`, measured
    elsewhere. Raises as `run`."""
    try:
        library = Library(folder, accumulate, every=True, anywhere=anywhere)
    except Unusable as error:
        raise HarnessFault(error.what, error.remedy) from error
    if library.reason:
        raise HarnessFault(f"{folder}: {library.reason}", "Measure calls on the machine whose kernels they are")
    return library


def spread(kernels: list[Kernel], count: int) -> list[Kernel]:
    """At most `count` of the kernels, evenly spread by size, small ones first."""
    kernels = sorted(kernels, key=lambda kernel: kernel.m * kernel.n * kernel.k)
    step = max(1, len(kernels) // max(count, 1))
    return kernels[::step][:count]


def settle(folder: Path, rows: list[Row]) -> int:
    """Sets which kernels in `rows` the folder dispatches: those that are surely faster than the vendor's, and whose
    calls took at most LIMIT times torch's time. Returns the number of kernels dispatched then.

    A kernel that did not serve its call (on a processor with another number of threads, for example) is not changed.
    Raises HarnessFault where the folder cannot be written.
    """
    export = manifest.read(folder)
    slower = {row["problem"]: not as_fast(row) for row in rows if row["served"]}
    kernels = tuple(
        msgspec.structs.replace(kernel, dispatch=surely_faster(kernel.timing) and not slower[kernel.problem.name])
        if kernel.problem.name in slower
        else kernel
        for kernel in export.kernels
    )
    rewrite(folder, msgspec.structs.replace(export, kernels=kernels))
    return sum(kernel.dispatch for kernel in kernels)


def settle_all(called: ModuleType, folder: Path, accumulate: str) -> tuple[list[Row], int]:
    """All rows that were measured, and how many kernels `called` (`cost` or `neighbours`) has settled to use.

    Raises ValueError where there is nothing to measure, and whatever `called.eligible` and `called.settle` raise.
    """
    library, kernels = called.eligible(folder, accumulate)
    rows: list[Row] = []
    settled = 0
    try:
        for kernel in track(kernels, "calls", console=Console(stderr=True), transient=True):
            rows += called.figures(library, kernel)
            if len(rows) - settled >= BATCH:
                called.settle(folder, rows[settled:])
                settled = len(rows)
    finally:
        count = called.settle(folder, rows[settled:])
    if not rows:
        raise ValueError(
            f"{folder} holds nothing to settle: no kernel of {accumulate} sums is surely faster, or has room"
        )
    return rows, count


def rewrite(folder: Path, export: manifest.Manifest) -> None:
    """Replaces the folder's manifest, atomically. Raises HarnessFault where the folder cannot be written."""
    try:
        manifest.write(folder, export)
    except OSError as error:
        raise HarnessFault(f"{folder} cannot be written: {error}", "Copy it to where it can") from error


def summary(rows: list[Row]) -> str:
    """A summary of the rows: a line for each figure."""
    lines = []
    for figure in ("host", "call", "graph"):
        if ratios := [_ratios(row, (figure,))[figure] for row in rows if f"{figure}_us" in row]:
            slower = sum(ratio > LIMIT for ratio in ratios)
            mean = statistics.geometric_mean(ratios)
            lines.append(
                f"{figure}: {mean:.3f} × torch's time in the geometric mean, {max(ratios):.3f} at worst; "
                f"more than {LIMIT - 1:.0%} slower on {slower} of {len(ratios)}"
            )
    return "\n".join(lines)


def _ratios(row: Row, figures: tuple[str, ...] = ("call", "graph")) -> dict[str, float]:
    """Our time over torch's, by figure. The host's time is left out by default: it costs nothing while the GPU is busy,
    and where the GPU is not, `call` includes it."""
    return {name: row[f"{name}_us"] / row[f"{name}_torch_us"] for name in figures if f"{name}_us" in row}


def as_fast(row: Row) -> bool:
    """Whether no figure is more than LIMIT times torch's."""
    return max(_ratios(row).values()) <= LIMIT


def operands(library: Library, kernel: Kernel, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Random A [rows, K], weight [N, K] and bias [N], None where the kernel adds none, where the library's kernels run.
    The weight of a kernel of layout "nn" is the transpose of a matrix that is stored as K x N."""
    asked = msgspec.structs.replace(problem(kernel), m=rows)
    made, where = getattr(torch, asked.type.torch), device(library)
    a, b, *more = (torch.randn(operand.shape, device=where).to(made) for operand in operators.inputs(asked))
    return a, b if kernel.layout == "tn" else b.t(), more[0] if more else None


def device(library: Library) -> str:
    """Where the library's kernels run, as torch names it."""
    return "cpu" if library.adds_bias else "cuda"


def problem(kernel: Kernel) -> Problem:
    """The kernel's problem, by the manifest."""
    return Problem(*kernel[:5], kernel.dtype, kernel.epilogue)  # type: ignore[arg-type]


def calls(
    library: Library, kernel: Kernel, a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> dict[str, Call]:
    """The same product by torch, by the library ("") and by its operator: as `matmul` where B is stored as K x N and
    nothing is added, else as `linear`."""
    linear, own = torch.nn.functional.linear, library.id
    if kernel.layout == "nn" and bias is None:
        b = weight.t()
        return {
            "torch": lambda: torch.matmul(a, b),
            "": lambda: library.matmul(a, b),
            "op": lambda: torch.ops.cudal2.matmul(a, b, own),
        }
    return {
        "torch": lambda: linear(a, weight, bias),
        "": lambda: library.linear(a, weight, bias),
        "op": lambda: torch.ops.cudal2.linear(a, weight, bias, own),
    }


def measured(library: Library, kernel: Kernel, rows: int) -> Row:
    """The figures of calls with so many `rows` of A: any that the kernel is for, or fewer."""
    a, weight, bias = operands(library, kernel, rows)
    sides = calls(library, kernel, a, weight, bias)
    row: Row = {"problem": problem(kernel).name, "rows": rows}
    by = "kernel" if kernel.rows[0] <= rows <= kernel.rows[1] else PADDED
    with torch.inference_mode(False), torch.no_grad():
        before = library.calls[by]
        for side in sides.values():
            side()
        row["served"] = library.calls[by] > before
        count = max(FEWEST, min(CALLS, int(SECONDS / _until_done(sides["torch"], FEWEST))))
        row |= _figures("call", _timed(sides, _until_done, count))
        if not a.is_cuda:
            return row
        row |= _figures("host", _timed(sides, _until_enqueued, count))
        graphs = {name: _captured(side, count) for name, side in sides.items()}
        return row | _figures("graph", _timed(graphs, _replayed, count))


def _figures(figure: str, seconds: dict[str, float]) -> Row:
    return {"_".join(filter(None, (figure, side, "us"))): 1e6 * value for side, value in seconds.items()}


def _timed(sides: dict[str, Any], seconds: Callable[[Any, int], float], calls: int) -> dict[str, float]:
    """The median seconds per call of each side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS + 1):
        for name in random.sample(list(sides), len(sides)):
            times[name].append(seconds(sides[name], calls))
    return {name: statistics.median(values[1:]) for name, values in times.items()}  # the first round warms up


def _until_enqueued(call: Call, calls: int) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def _until_done(call: Call, calls: int) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    _wait()
    return (time.perf_counter() - started) / calls


def _captured(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    _wait()
    return begin.elapsed_time(end) / 1e3 / calls


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
