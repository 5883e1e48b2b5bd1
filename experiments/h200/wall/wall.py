"""What a user would pick instead of our eight baselines, beside the fastest of these, by the judge's own clock.

    python experiments/h200/wall/wall.py [NAMES] [--export RUN/export] [--seconds 500] [-o wall.csv]
    python experiments/h200/wall/wall.py --table -o wall.csv                    # the table once more; needs no GPU

NAMES are problems as `shapes=` takes them, in `tn`: `llm-sample_bf16` unless told, whose every beginning is a fair
sample. Those that the file holds are passed over; no other is begun after so many seconds. In turn with the baselines,
from CUDA graphs over rotating buffers: a linear layer by torch.compile with max-autotune (`compile`), a persistent
matmul in Triton with the best of six tiles (`triton`), the export's own kernel (`ours`), cuBLASLt tuned with other
workspaces (`lt-0` … `lt-256` MiB; the baselines have 32), and torch.matmul as it is by itself, which may add up parts
of K in 16 bits where the baselines may not (`default-tn`, `default-nn`). The file gets the microseconds of each and how
many times as fast as the fastest baseline it is; `any` is the fastest contender but ours. What `compile` and `ours`
write may stay in the L2, which favours them a little. Kernels of CUTLASS are missing: nvcc takes a minute for each.
"""

import argparse
import csv
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from cudal2.config import ShapesConfig, WorkerConfig
from cudal2.exported.library import Library
from cudal2.problem import Problem
from cudal2.report.budget import estimate
from cudal2.worker import timing
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.vendor import lt, names, split, tuning
from cudal2.worker.cuda.vendor.baselines import Vendor, _by_torch
from cudal2.worker.gpu.arena import views
from cudal2.worker.gpu.buffers import buffer_layout

try:
    from persistent import calls_of
except ImportError:  # there is no Triton
    calls_of = None

MIB, BATCH, ALGORITHMS = (0, 4, 32, 256), 0.5e-3, 16
LOOSE = 4.0
"""So many times what two honest results may differ by: a contender beyond that computes something else."""
BANDS = {"1–16 rows": 16, "17–64": 64, "65–1024": 1024, "more": 1 << 20}
Call = Callable[..., Any]
"""Enqueues a product of A, B, perhaps a bias, and C; returns the result unless that is C."""


def by_compile() -> Call:
    """A linear layer as torch.compile makes it, tuned for the shapes of its first call."""
    torch._dynamo.reset()

    def layer(a: torch.Tensor, b: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(a, b, *more[:-1])

    return torch.compile(layer, mode="max-autotune-no-cudagraphs", dynamic=False)


@contextmanager
def allowed(mib: int) -> Iterator[None]:
    """Has cuBLASLt ask for so much workspace, and be told that it has it."""
    before, lt.WORKSPACE = lt.WORKSPACE, mib << 20
    try:
        yield
    finally:
        lt.WORKSPACE = before


def by_lt(vendor: Vendor, problem: Problem, mib: int, room: torch.Tensor, sets: Sequence[Any]) -> list[Call]:
    """The algorithms that may be the fastest within that workspace."""
    with allowed(mib):
        plan = lt.Plan(vendor._lt, problem, "tn")
        algorithms = plan.heuristics(ALGORITHMS)

    def bound(algorithm: lt.Algorithm) -> Call:
        def call(*given: torch.Tensor) -> None:
            where = room.data_ptr(), torch.cuda.current_stream().cuda_stream
            with allowed(mib):
                plan.enqueue(algorithm, [tensor.data_ptr() for tensor in given], *where)

        return call

    ways = [(algorithm, bound(algorithm)) for algorithm in algorithms]
    return [call for _, call in tuning.finalists(problem, vendor.clock, sets, ways)]


def attempt(what: str, do: Callable[[], Any]) -> Any:
    """What it gives; None, and a line that says why, where one of others' kernels fails: the rest goes on."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001
        print(f"{what}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None


def contenders(vendor: Vendor, problem: Problem, sets: Sequence[Any], ours: Library | None) -> list[tuple]:
    """Name, layout of B, and call; several of one name where it is not yet known which of them is the fastest."""
    room = torch.empty(MIB[-1] << 20, dtype=torch.uint8, device="cuda")
    found = [("compile", "tn", by_compile())]
    found += [("triton", "tn", call) for call in (calls_of(problem) if calls_of else ())]
    if ours and any(one.name == problem.name for one in ours.kernels):
        found.append(("ours", "tn", lambda a, b, *more: ours.linear(a, b, *more[:-1])))
    for of in ("tn", "nn"):
        found.append((f"default-{of}", of, lambda *given, of=of: _by_torch(problem, of, *given)))
    for mib in MIB:
        calls = attempt(f"{problem.name}: lt-{mib}", lambda mib=mib: by_lt(vendor, problem, mib, room, sets))
        found += [(f"lt-{mib}", "tn", call) for call in calls or ()]
    return found


@torch.no_grad()
def measure(vendor: Vendor, problem: Problem, ours: Library | None) -> dict[str, float]:
    """Microseconds of the fastest baseline (`baseline`), and of each contender that is right."""
    clock, buffers = vendor.clock, buffer_layout(problem)
    a, b, *more, c = views(torch.empty(buffers.workspace // 2, dtype=torch.int16, device="cuda"), buffers)
    for given in (a, b, *more):
        given.normal_()
    sets = {"tn": list(zip(a, b, *more, c)), "nn": list(zip(a, b.transpose(1, 2).contiguous(), *more, c))}
    least = min(vendor.prepare(problem, sets.__getitem__).seconds.values())
    window = slice(0, timing.calls_for(least, BATCH, buffers.sets))
    graphs = {("baseline", one): vendor.capture(one, problem, sets[split(one)[1]][window]) for one in names(problem)}
    reference = clock.run(lambda *given: vendor.enqueue("torch-tn", problem, *given), sets["tn"][0]).clone()

    def captured(call: Call, layout: str) -> torch.cuda.CUDAGraph:
        answers: list[Any] = []
        result = clock.run(lambda *given: answers.append(call(*given)), sets[layout][0])
        off = tuning.difference(result if answers[0] is None else answers[0], reference)
        if not off <= LOOSE * tuning.tolerance(problem):
            raise ArithmeticError(f"its result is off by {off:.2g}")
        return clock.graph(call, sets[layout][window])

    for number, (name, layout, call) in enumerate(contenders(vendor, problem, sets["tn"], ours)):
        if graph := attempt(f"{problem.name}: {name}", lambda call=call, layout=layout: captured(call, layout)):
            graphs[name, number] = graph
    best: dict[str, float] = {}
    for (name, _), rounds in tuning.in_turn(clock, graphs, window.stop).items():
        best[name] = min(median(rounds) * 1e6, best.get(name, math.inf))
    return best


def lines_of(problem: Problem, us: Mapping[str, float]) -> list[dict[str, str]]:
    """A line of the file for each contender."""
    told = {name: {"us": f"{one:.3f}", "ratio": f"{us['baseline'] / one:.4f}"} for name, one in us.items()}
    return [{"problem": problem.name, "contender": name, **one} for name, one in told.items()]


def table(lines: Sequence[Mapping[str, str]]) -> str:
    """Geometric means of the ratios with 95% intervals over shapes, by contender and number of rows; `beyond` is what
    ours is over the fastest of all others, baselines and contenders."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for line in lines:
        found[line["contender"]][line["problem"]] = ratio = float(line["ratio"])
        if line["contender"] not in ("ours", "baseline"):
            found["any"][line["problem"]] = max(ratio, found["any"].get(line["problem"], 0.0))
    for shape, ratio in list(found["ours"].items()):
        found["beyond"][shape] = ratio / max(1.0, found["any"].get(shape, 1.0))
    rows = {shape: int(shape.split("_")[0]) for shape in found["baseline"]}
    bands = list(zip(BANDS, (0, *BANDS.values()), BANDS.values()))
    bands = [(name, least, most) for name, least, most in bands if any(least < m <= most for m in rows.values())]
    text = [f"{'':<11}" + "".join(f"{name:<28}" for name, _, _ in bands)]
    for name in sorted(name for name in found if found[name] and name != "baseline"):
        text.append(f"{name:<11}")
        for _, least, most in bands:
            logs = [math.log(ratio) for shape, ratio in found[name].items() if least < rows[shape] <= most]
            said = "{:.3f} [{:.3f}, {:.3f}]".format(*map(math.exp, estimate(logs))) + f" of {len(logs)}" if logs else ""
            text[-1] += f"{said:<28}"
    return "\n".join(line.rstrip() for line in text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="?", default="llm-sample_bf16")
    parser.add_argument("--count", type=int, default=100, help="how many a list of samples has")
    parser.add_argument("--export", type=Path, help="a folder that cudal2 export wrote")
    parser.add_argument("--seconds", type=float, default=500, help="after which no problem is begun")
    parser.add_argument("--table", action="store_true", help="measures nothing")
    parser.add_argument("-o", dest="out", type=Path, default=Path("wall.csv"))
    arguments = parser.parse_args()
    began, path = time.monotonic(), arguments.out
    lines = list(csv.DictReader(path.open())) if path.exists() else []
    if not arguments.table:
        if not torch.cuda.is_available():
            parser.error("measuring needs a GPU; --table shows what a file holds")
        vendor = Vendor(0, Cache(Path(WorkerConfig().cache).expanduser()))
        ours = Library(arguments.export, every=True) if arguments.export else None
        done, asked = {line["problem"] for line in lines}, ShapesConfig((*arguments.names.split(","),), arguments.count)
        for problem in asked.problems():
            if problem.name in done or time.monotonic() - began > arguments.seconds:
                continue
            if us := attempt(problem.name, lambda problem=problem: measure(vendor, problem, ours)):
                lines += lines_of(problem, us)
                with path.open("w") as file:
                    writer = csv.DictWriter(file, lines[0])
                    writer.writeheader()
                    writer.writerows(lines)
                print(problem.name, *(f"{name} {us['baseline'] / one:.3f}" for name, one in us.items()), flush=True)
            torch.cuda.empty_cache()
    print(table(lines))


if __name__ == "__main__":
    main()
