"""Do legal schedules ever differ by a bit, and are planted faults seen? Thousands of edits through the judge, on a GPU.

    python experiments/sass/fuzz.py walks.json -o fuzz.json        # walks.json: see walks.py

Prints a table of kernels, one of faults, and edits a second; exit code 1 where a legal schedule was not ok. Where the
compiler here writes other code than the one that the walks were made with, fresh walks are made here, which takes a
core half a minute a kernel.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import walks

from cudal2.config import EffortConfig, WorkerConfig
from cudal2.records import Candidate, Edit, Measured, Status
from cudal2.worker.cuda import plan
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.cuda.edit_bench import EditBench
from cudal2.worker.worker import Worker

Row = dict[str, Any]

PAIRS = 3
"""Pairs of turns a schedule: dozens to hundreds of launches, each of which is compared."""


def current(kernel: walks.Kernel, parent: plan.CudaLaunchable) -> bool:
    """Whether the walks are of this very code."""
    try:
        return cubin.made_for(parent.cubin, kernel.kernel).sha256 == kernel.sha256
    except cubin.EditRefused:
        return False


def fuzz(worker: Worker, kernel: walks.Kernel, parent: plan.CudaLaunchable, until: float) -> Row:
    """All legal schedules of a kernel, and until that time its faults, through one bench that lets everything pass."""
    edits = kernel.edits()
    few = EffortConfig(min_pairs=PAIRS, max_pairs=PAIRS, arrangements=1)
    with EditBench(worker, parent, kernel.problem, lambda those: ("" for _ in those), few) as bench:
        floor = bench.floor(thoroughly=True)
        started = time.perf_counter()
        found = bench.measure(edits)
        seconds, exact = time.perf_counter() - started, bench.exact
        faults = []
        for fault in kernel.faults:
            if time.perf_counter() < until:
                faults += bench.measure([Edit(kernel.kernel, kernel.sha256, fault.moves)])
    speeds = [one.speedup for one in found if one.status is Status.OK]
    return {
        "family": kernel.family,
        "problem": kernel.problem.name,
        "instructions": kernel.instructions,
        "exact": exact,
        "schedules": len(found),
        "ok": len(speeds),
        "seconds": seconds,
        "floor": msgspec.to_builtins(floor),
        "speedups": [round(speed, 5) for speed in speeds],
        "bad": [described(edit, one) for edit, one in zip(edits, found) if one.status is not Status.OK],
        "faults": [
            {"kind": fault.kind, "found": fault.found, "status": one.status, "reason": one.reason}
            for fault, one in zip(kernel.faults, faults)
        ],
    }


def described(edit: Edit, found: Measured) -> Row:
    """An edit that went wrong, whole, so that it can be looked into."""
    return {"edit": msgspec.to_builtins(edit), "found": msgspec.to_builtins(found)}


def line(row: Row) -> str:
    speeds = row["speedups"] or [float("nan")]
    low, median, high = np.quantile(speeds, (0, 0.5, 1))
    floor = row["floor"]
    return (
        f"{row['family']:<11} {row['problem']:<20} {row['instructions']:>5} {'bits' if row['exact'] else 'bounds':>6} "
        f"{row['ok']:>4} of {row['schedules']:>4}  {low:.3f} {median:.3f} {high:.3f}  "
        f"{floor['speedup']:.3f} [{floor['low']:.3f}, {floor['high']:.3f}]  {row['schedules'] / row['seconds']:>5.1f}/s"
    )


def fault_table(rows: list[Row]) -> str:
    """By kind of fault: how many the checker finds, and what became of them on the GPU."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        for fault in row["faults"]:
            kinds[fault["kind"]].append(fault)
    lines = [f"{'fault':<24} {'planted':>7} {'checker':>7} {'judge':>6} {'NaN':>4}  what the judge said"]
    for kind, those in sorted(kinds.items()):
        statuses = Counter(fault["status"] for fault in those)
        seen = sum(count for status, count in statuses.items() if status != "ok")
        nan = sum("NaN" in fault["reason"] for fault in those)
        checker = sum(bool(fault["found"]) for fault in those)
        said = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
        lines.append(f"{kind:<24} {len(those):>7} {checker:>7} {seen:>6} {nan:>4}  {said}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=140.0, help="after so long no other kernel is begun")
    parser.add_argument("--cache", default="~/.cache/cudal2")
    arguments = parser.parse_args()
    cache = str(Path(arguments.cache).expanduser())
    kernels = msgspec.json.decode(arguments.walks.read_bytes(), type=list[walks.Kernel])
    started, rows = time.perf_counter(), list[Row]()
    end = started + arguments.seconds
    with (
        Worker(WorkerConfig(protocols=(), cache=cache), walks.TARGET) as worker,
        ThreadPoolExecutor(os.cpu_count()) as builders,
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool,
    ):
        built = [builders.submit(worker.build, Candidate(one.source, one.problem, walks.TARGET)) for one in kernels]
        later: list[tuple[Future[walks.Kernel | None], plan.CudaLaunchable]] = []
        print("family      problem              instr   held   ok         least, median, most      floor")
        for number, (kernel, future) in enumerate(zip(kernels, built), 1):
            prepared = future.result()
            share = started + arguments.seconds * number / len(kernels)  # what schedules leave of it is the faults'
            if prepared.launchable is None:
                print(f"{kernel.family}: {prepared.status} {prepared.reason}")
            elif not current(kernel, prepared.launchable):
                what = (kernel.family, kernel.layout, kernel.size, kernel.source, len(kernel.edits()), cache)
                later.append((pool.submit(walks.walked, *what), prepared.launchable))
            elif time.perf_counter() < end:
                take(rows, arguments.output, worker, kernel, prepared.launchable, share)
        for walking, parent in later:
            fresh = walking.result() if time.perf_counter() < end else None
            if fresh is not None:
                take(rows, arguments.output, worker, fresh, parent, end)
            walking.cancel()
    schedules, good = sum(row["schedules"] for row in rows), sum(row["ok"] for row in rows)
    seconds = sum(row["seconds"] for row in rows)
    print(
        f"\n{len(rows)} of {len(kernels)} kernels, {good} of {schedules} legal schedules ok, "
        f"{schedules / max(seconds, 1e-9):.1f} a second; ",
        end="",
    )
    print(f"{time.perf_counter() - started:.0f} s in all\n\n{fault_table(rows)}")
    sys.exit(good < schedules or not rows)


def take(
    rows: list[Row], output: Path, worker: Worker, kernel: walks.Kernel, parent: plan.CudaLaunchable, until: float
) -> None:
    """Another row, shown and saved; none for a kernel that is not right as it is."""
    try:
        row = fuzz(worker, kernel, parent, until)
    except ValueError as error:
        print(f"{kernel.family} {kernel.problem.name}: {error}", flush=True)
        return
    rows.append(row)
    output.write_text(json.dumps(rows))
    print(line(row), flush=True)
    for bad in row["bad"][:3]:
        print(f"    {bad['found']['status']}: {bad['found']['reason']} after {len(bad['edit']['moves'])} moves")


if __name__ == "__main__":
    main()
