"""Kernels of the family `decode` on weights of published models, for few rows: the best setting of each weight.

    python experiments/h200/decode.py OUT [--seconds 400] [--rows 8,1,16] [--weights NxK,…] [--settings NAME,…]

Every weight's settings are judged quickly, the fastest once more with the worker's defaults. OUT/verdicts.jsonl gets a
line for each verdict as it comes, OUT/settings.jsonl the best of each weight as `data/settings` has them, fastest
first. Ends with the geometric mean of the speedups over the fastest baseline, by rows. After so many seconds no other
weight is begun.
"""

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec
from omegaconf import OmegaConf

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.corpus import Knobs
from cudal2.files import asset
from cudal2.problem import Problem
from cudal2.records import Candidate, Verdict
from cudal2.search.known import Known
from cudal2.target import find
from cudal2.worker.pool.pool import Pool

TARGET = find("sm_90a")
FAMILY = next(family for family in corpus.families(TARGET) if family.name == "decode")
USUAL: Knobs = {knob: values[0] for knob, values in FAMILY.knobs.items()}
REGISTERS: Knobs = {"load": "registers", "deal": "parts"}

SETTINGS: dict[str, Knobs] = {
    "deep": REGISTERS,
    "deep-32": REGISTERS | {"tile_n": 32},
    "deep-wide": REGISTERS | {"warps": 16},
    "two": REGISTERS | {"warps": 16, "side": 2},
    "two-32": REGISTERS | {"warps": 16, "side": 2, "tile_n": 32},
    "four-32-half": REGISTERS | {"warps": 16, "side": 4, "tile_n": 32, "splits": 2},
    "four-far": REGISTERS | {"warps": 16, "side": 4, "depth": 8},
    "three": REGISTERS | {"warps": 12, "side": 3},
    "six": REGISTERS | {"warps": 12, "side": 6},
    "eight": REGISTERS | {"side": 8},
    "quarter": REGISTERS | {"splits": 4},
    "ring-half": {"splits": 2, "blocks": 4},
    "ring-32": {"tile_n": 32, "blocks": 2},
    "ring": {"blocks": 4},
    "ring-half-three": {"splits": 2, "blocks": 3},
    "ring-three": {"blocks": 3},
    "four": REGISTERS | {"warps": 16, "side": 4},
    "half": REGISTERS | {"splits": 2},
}
"""Knobs over each one's first value: warps side by side (none unless said), rows of the weights that each has, blocks
that share k."""

WEIGHTS: dict[tuple[int, int], float] = {
    (576, 7168): 4.21,
    (2880, 4096): 7.40,
    (3584, 3584): 7.32,
    (4608, 3584): 9.36,
    (5120, 2880): 8.83,
    (4096, 4096): 9.61,
    (7680, 5120): 18.99,
    (24576, 1536): 18.03,
    (3584, 18944): 30.67,
    (7168, 16384): 51.56,
    (37888, 3584): 59.59,
}
"""N×K: how many µs an H200 took to read it in a CUDA graph over rotating copies."""


def knobs_of(name: str, rows: int) -> Knobs:
    """The whole setting of that name, with the smallest tile that has so many rows."""
    tile = next(size for size in FAMILY.knobs["tile_m"] if int(size) >= rows)
    return USUAL | {"tile_m": tile} | SETTINGS[name]


def candidates(problem: Problem, names: list[str]) -> dict[str, Candidate]:
    """By name; those that do not fit so many rows are left out."""
    fitting = [name for name in names if not corpus.refusal(FAMILY, knobs_of(name, problem.m), problem)]
    sources = {name: corpus.render(FAMILY, knobs_of(name, problem.m), problem) for name in fitting}
    return {name: Candidate(source, problem, TARGET.name) for name, source in sources.items()}


def line_of(name: str, problem: Problem, effort: str, verdict: Verdict | None) -> dict[str, Any]:
    """A verdict as a line of the results; None is a fault of the harness."""
    line: dict[str, Any] = {"problem": problem.mnk, "name": name, "knobs": knobs_of(name, problem.m), "effort": effort}
    if verdict is None:
        return line | {"status": "fault"}
    line |= {"status": str(verdict.status), "reason": verdict.reason, "rho": verdict.rho}
    if timing := verdict.timing:
        floor = WEIGHTS[problem.n, problem.k]
        line |= {"us": timing.candidate_us, "speedup": timing.speedup, "low": timing.low, "high": timing.high}
        line |= {"baseline": timing.baseline, "baseline_us": timing.baseline_us, "confidence": timing.confidence}
        line |= {"floor_us": floor, "of_floor": floor / timing.candidate_us}
    return line


def judged(pool: Pool, problem: Problem, names: list[str], effort: str, verdicts: TextIO) -> list[dict[str, Any]]:
    """A line for each setting, also written; the right ones, fastest first, before the others."""
    chosen = candidates(problem, names)
    found = pool.evaluate(list(chosen.values()))
    lines = [line_of(name, problem, effort, verdict) for name, verdict in zip(chosen, found, strict=True)]
    for line in lines:
        print(msgspec.json.encode(line).decode(), file=verdicts, flush=True)
    return sorted(lines, key=lambda line: -line.get("speedup", 0))


def shown(best: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """One line for the best, one for each that failed."""
    text = f"{best['problem']:<16} no correct kernel among {len(lines)}"
    if "us" in best:
        knobs = " ".join(f"{knob}={value}" for knob, value in best["knobs"].items() if value != USUAL[knob])
        text = (
            f"{best['problem']:<16} {best['us']:7.2f} µs  {best['speedup']:.3f} × [{best['low']:.3f}, "
            f"{best['high']:.3f}] {best['baseline']}  {best['of_floor']:.2f} of the read floor  "
            f"{best['name']} of {len(lines)}: {knobs}"
        )
    failed = (line for line in lines if line["status"] != "ok")
    return "\n".join(
        [text, *(f"    {line['name']}: {line['status']}: {line.get('reason', '')[:160]}" for line in failed)]
    )


def configs(cache: str) -> tuple[WorkerConfig, WorkerConfig]:
    """The worker's config `quick`, and its defaults; neither waits long for a kernel that hangs."""
    values = {"cache": cache, "run_seconds": 10.0, "verdict_seconds": 20.0, "compile_seconds": 120.0}
    quick = OmegaConf.to_container(OmegaConf.load(asset("conf", "worker", "quick.yaml")))
    return msgspec.convert({**quick, **values}, WorkerConfig), msgspec.convert(values, WorkerConfig)  # type: ignore[dict-item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--rows", default="8,1,16")
    parser.add_argument("--weights", default=",".join(f"{n}x{k}" for n, k in WEIGHTS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--epilogue", default="none")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    weights = [tuple(map(int, text.split("x"))) for text in given.weights.split(",")]
    problems = [
        Problem(int(rows), n, k, "tn", "f32", given.dtype, given.epilogue)
        for rows in given.rows.split(",")
        for n, k in weights
    ]
    given.out.mkdir(parents=True, exist_ok=True)
    names, logs = given.settings.split(","), dict[int, list[float]]()
    quick, proper = configs(str(given.out / "cache"))
    with (
        (given.out / "verdicts.jsonl").open("a") as verdicts,
        (given.out / "settings.jsonl").open("a") as settings,
        Pool(quick, TARGET.name) as first,
        Pool(proper, TARGET.name) as again,
    ):
        for number, problem in enumerate(problems):
            if time.monotonic() > until:
                print(f"time is up after {number} of {len(problems)}")
                break
            lines = judged(first, problem, names, "quick", verdicts)
            best = judged(again, problem, [lines[0]["name"]], "default", verdicts)[0]
            print(shown(best, lines), flush=True)
            for line in [line for line in lines if "us" in line][:3]:
                known = Known(problem.mnk, "tn", FAMILY.name, line["knobs"])
                print(msgspec.json.encode(known).decode(), file=settings, flush=True)
            if "speedup" in best:
                logs.setdefault(problem.m, []).append(math.log(best["speedup"]))
    for rows, values in logs.items():
        print(f"{rows} rows: geometric mean of {len(values)}: {math.exp(statistics.fmean(values)):.3f}")


if __name__ == "__main__":
    main()
