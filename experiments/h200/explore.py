"""Many settings on many shapes, quickly, without the worker: where to look, not a verdict. data/settings came so.

    python experiments/h200/explore.py SETTINGS.jsonl M_N_K,M_N_K,… OUT.jsonl [SECONDS]

SETTINGS.jsonl holds {"family": …, "knobs": {…}} on each line, `rows` where a setting is for no fewer and no more of
them ([1, 8]), `shapes` where it is for some alone, and `edit` where the source is changed in what is no knob: its name
and pairs of a pattern and what takes its place, as re.sub has them. Every kernel is compiled once, then launched in
this process beside the best of a few cuBLASLt algorithms on rotating buffers, a hundred or more a second. OUT.jsonl
gets a line for each kernel and shape: what was said of it ("ok", "wrong", "refused", or "slow" where another of its
family was far faster), its microseconds and its speedup over that baseline. Settings of families that do not apply to
a shape are passed over. These are our own kernels: nothing protects the process from them but a parent that starts it
again without the one that crashed or hung.
"""

import ctypes
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.corpus.family import form
from cudal2.problem import Problem, parse
from cudal2.records import Status, digest
from cudal2.target import find
from cudal2.worker import timing
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build
from cudal2.worker.cuda.vendor import split, tuning
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.hosttime import Set
from cudal2.worker.cuda.vendor.replay import Enqueue
from cudal2.worker.gpu.arena import views
from cudal2.worker.gpu.buffers import buffer_layout
from cudal2.worker.sandbox import jail

TARGET = find("sm_90a")
FAMILIES = {family.name: family for family in corpus.families(TARGET)}
PATIENCE = 20.0
"""Seconds after which a kernel hangs."""
BATCH, ROUNDS, ALGORITHMS = 0.5e-3, 3, 8
SLOW = 1.6
WRONG = 3e-3
"""Relative RMS difference from torch.matmul that no rounding explains."""
THEIRS = ""
"""The baseline among the names of kernels: nobody to leave out after a crash."""


class Refused(Exception):
    """A launcher answered with an error."""


def libraries(folder: Path, settings: list[dict]) -> dict[str, dict]:
    """A shared object for each setting, by the digest of its source; what was built before is recalled."""
    folder.mkdir(parents=True, exist_ok=True)
    cache, kind = Cache(folder / "cache"), jail.choose(WorkerConfig().jail)
    found = {}
    for setting in settings:
        source = render(setting, "tn")
        found[digest(source)] = (source, setting)

    def make(name: str) -> None:
        made = build.build(found[name][0], TARGET, cache, kind, seconds=300)
        if made.status is not Status.OK:
            print(f"cannot be built, so it is left out: {found.pop(name)[1]}: {made.log[-500:]}", flush=True)
            return
        (folder / f"{name}.so").write_bytes(made.library)

    with ThreadPoolExecutor() as threads:
        list(threads.map(make, list(found)))
    return {name: setting for name, (_, setting) in found.items()}


def render(setting: dict, like: Problem | str) -> str:
    """The source of a setting, with its edit."""
    source = corpus.render(FAMILIES[setting["family"]], setting["knobs"], like)
    for pattern, instead in setting.get("edit", {}).get("pairs", []):
        source = re.sub(pattern, instead, source)
    return source


def label(setting: dict) -> dict:
    """What a line of OUT.jsonl says of the setting."""
    edit = {"edit": setting["edit"]["name"]} if "edit" in setting else {}
    return {"family": setting["family"], "knobs": setting["knobs"], **edit}


def launcher(library: Path, problem: Problem, workspace: torch.Tensor) -> Enqueue:
    """What enqueues the kernel on a set of matrices; that raises Refused."""
    hgemm = ctypes.CDLL(str(library)).hgemm
    hgemm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 3 + [ctypes.c_void_p] * 2

    def enqueue(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        pointers = (matrix.data_ptr() for matrix in (a, b, c))
        stream = torch.cuda.current_stream().cuda_stream
        if hgemm(*pointers, problem.m, problem.n, problem.k, workspace.data_ptr(), stream):
            raise Refused

    return enqueue


def fitting(settings: Mapping[str, dict], problem: Problem) -> dict[str, dict]:
    """The settings for so many rows, of families that apply to the shape, with the source that was built."""

    def fits(name: str, setting: dict) -> bool:
        family, (least, most) = FAMILIES[setting["family"]], setting.get("rows", (1, math.inf))
        named = problem.mnk in setting.get("shapes", [problem.mnk])
        if not named or not least <= problem.m <= most or not corpus.applies(family, problem):
            return False
        return source_digest(json.dumps(setting), form(problem)) == name

    return {name: setting for name, setting in settings.items() if fits(name, setting)}


@cache
def source_digest(setting: str, like: Problem) -> str:
    """Of the source for problems of that form; rendering takes as long as a measurement."""
    return digest(render(json.loads(setting), like))


def operands(problem: Problem) -> tuple[dict[str, list[Set]], torch.Tensor, torch.Tensor]:
    """Rotating sets of matrices, with B stored either way; the first set's product; and a workspace."""
    buffers = buffer_layout(problem)
    a, b, c = views(torch.empty(buffers.workspace // 2, dtype=torch.int16, device="cuda"), buffers)
    a.normal_(), b.normal_()
    sets: dict[str, list[Set]] = {"tn": list(zip(a, b, c)), "nn": list(zip(a, b.transpose(1, 2).contiguous(), c))}
    return sets, torch.matmul(a[0], b[0].t()), torch.zeros(257 << 20, dtype=torch.uint8, device="cuda")


def beside(vendor: Vendor, problem: Problem, sets: dict[str, list[Set]]) -> tuple[torch.cuda.CUDAGraph, slice]:
    """A graph of the fastest baseline, and which of the sets are in it."""
    seconds = vendor.prepare(problem, sets.__getitem__).seconds
    best = min(seconds, key=seconds.__getitem__)
    window = slice(0, timing.calls_for(seconds[best], BATCH, len(sets["tn"])))
    return vendor.capture(best, problem, sets[split(best)[1]][window]), window


def explore(vendor: Vendor, folder: Path, settings: dict[str, dict], problem: Problem, out: Path, mark: Path) -> None:
    """Measure every kernel on one shape; `mark` says which one is at work."""
    clock = vendor.clock
    sets, reference, workspace = operands(problem)
    theirs, window = beside(vendor, problem, sets)
    few = sets["tn"][:4][window]
    graphs, said = {THEIRS: theirs}, {}
    fastest: dict[str, float] = {}
    for name, setting in settings.items():
        mark.write_text(name)
        call = launcher(folder / f"{name}.so", problem, workspace)
        try:
            result = clock.run(call, sets["tn"][0])
        except Refused:
            said[name] = {"said": "refused"}
            continue
        if not tuning.difference(result, reference) < WRONG:
            said[name] = {"said": "wrong"}
            workspace.zero_()  # what the next one expects
            continue
        graph, family = clock.graph(call, few), setting["family"]
        first = clock.cold(graph, len(few))
        if first > SLOW * fastest.get(family, math.inf):
            first = min(first, clock.cold(graph, len(few)))  # one run alone can take ten times too long
        if first > SLOW * fastest.get(family, math.inf):
            said[name] = {"said": "slow", "us": first * 1e6}
            continue
        fastest[family] = min(first, fastest.get(family, math.inf))
        graphs[name] = clock.graph(call, sets["tn"][window])

    rounds: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS + 1):
        for name, graph in graphs.items():
            mark.write_text(name)
            rounds[name].append(clock.replay(graph) / window.stop * 1e6)
    microseconds = {name: statistics.median(found[1:]) for name, found in rounds.items()}
    base = microseconds.pop(THEIRS)
    for name, us in microseconds.items():
        said[name] = {"said": "ok", "us": us, "speedup": round(base / us, 3)}
    lines = [{"problem": problem.mnk, **label(settings[name]), **found} for name, found in said.items()]
    with out.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    top = base / min(microseconds.values(), default=math.inf)
    print(f"{problem.mnk:<20} {len(microseconds):>4} kernels  {base:9.2f} µs  {top:.3f}", flush=True)


def child(folder: Path, shapes: str, out: Path, seconds: float) -> None:
    """Explores these shapes until the time is up; the settings come by the standard input."""
    deadline, settings = time.monotonic() + seconds, json.loads(sys.stdin.read())
    tuning.REQUESTED = ALGORITHMS
    vendor = Vendor(0, Cache(folder / "cache"))
    for shape in shapes.split(","):
        if time.monotonic() < deadline:
            problem = parse(shape)
            explore(vendor, folder, fitting(settings, problem), problem, out, folder / "at work")
            torch.cuda.empty_cache()
    os._exit(0)


def main(settings_path: str, shapes: str, out_path: str, limit: str = "300") -> None:
    out, deadline = Path(out_path), time.monotonic() + float(limit)
    folder = out.with_suffix(".kernels")
    settings = libraries(folder, [json.loads(line) for line in Path(settings_path).read_text().splitlines()])
    print(f"{len(settings)} kernels are built", flush=True)
    mark, left = folder / "at work", shapes.split(",")
    out.touch()
    while left and (seconds := deadline - time.monotonic()) > 0:
        mark.write_text("")
        told = [sys.executable, __file__, CHILD, str(folder), ",".join(left), str(out), str(seconds)]
        process = subprocess.Popen(told, stdin=subprocess.PIPE)
        assert process.stdin
        process.stdin.write(json.dumps(settings).encode())
        process.stdin.close()
        while process.poll() is None:
            time.sleep(0.2)
            if mark.read_text() and time.time() - mark.stat().st_mtime > PATIENCE:
                process.kill()
        if process.returncode == 0:
            break
        done = {json.loads(line)["problem"] for line in out.open()}
        left = [shape for shape in left if shape not in done]
        if culprit := mark.read_text():
            print(f"{left[0]}: {settings.pop(culprit)} crashed or hung", flush=True)
        else:
            print(f"{left.pop(0)} could not be begun", flush=True)


CHILD = "child"

if __name__ == "__main__":
    if sys.argv[1] == CHILD:
        child(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), float(sys.argv[5]))
    main(*sys.argv[1:])
