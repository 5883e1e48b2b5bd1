"""Kernels of the family `decode` on weights of published models, for 8 and 16 rows: the best setting of each weight.

    python experiments/h200/decode.py OUT [--seconds 180] [--rows 8,16] [--weights NxK,…] [--settings 12]

Every weight's settings are judged by the worker in the order of what was expected of them, as many as its share of the
time allows; the fastest is judged once more with the worker's defaults. Kernels are compiled ahead, each once, as sizes
are arguments. OUT/verdicts.jsonl gets a line for each verdict as it comes, OUT/settings.jsonl the best of each weight
as `data/settings` has them, fastest first. Ends with the geometric mean of the speedups over the fastest baseline.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from omegaconf import OmegaConf

from cudal2 import corpus
from cudal2.assets import asset
from cudal2.config import WorkerConfig
from cudal2.corpus import Knobs
from cudal2.problem import Problem
from cudal2.records import Candidate, Verdict
from cudal2.search.known import Known
from cudal2.target import find
from cudal2.worker.worker import Worker

TARGET = find("sm_90a")
FAMILY = next(family for family in corpus.families(TARGET) if family.name == "decode")

SETTINGS: dict[str, dict[int, Knobs]] = {
    "wide": {8: {"warps": 16, "blocks": 2}, 16: {"warps": 16}},
    "tiles": {8: {"blocks": 4}, 16: {"blocks": 3}},
    "rows32": {8: {"tile_n": 32, "blocks": 2}},
    "even16": {8: {"work": "shares", "blocks": 2, "depth": 8}, 16: {"work": "shares", "blocks": 2}},
    "even32": {
        8: {"work": "shares", "blocks": 2, "tile_n": 32},
        16: {"work": "shares", "blocks": 2, "tile_n": 32, "depth": 2},
    },
    "even64": {
        8: {"work": "shares", "blocks": 2, "tile_n": 64, "depth": 2},
        16: {"work": "shares", "blocks": 2, "tile_n": 64, "warps": 4},
    },
    "three": {
        8: {"work": "shares", "blocks": 3, "tile_n": 32, "depth": 2},
        16: {"work": "shares", "blocks": 3, "tile_n": 32, "warps": 4},
    },
    "half": {8: {"splits": 2, "blocks": 4}, 16: {"splits": 2, "blocks": 3}},
    "quarter": {8: {"splits": 4, "warps": 16, "blocks": 2}, 16: {"splits": 4, "warps": 16}},
    "eighth": {
        8: {"splits": 8, "warps": 4, "depth": 8, "blocks": 4},
        16: {"splits": 8, "warps": 4, "depth": 8, "blocks": 2},
    },
    "registers": {8: {"load": "registers", "warps": 16, "deal": "parts"}},
    "evict": {
        8: {"work": "shares", "blocks": 2, "tile_n": 32, "hint": "evict first"},
        16: {"work": "shares", "blocks": 2, "tile_n": 32, "depth": 2, "hint": "evict first"},
    },
}
"""Knobs by rows of A, over each knob's first value; 16 rows take those of 8 where they have none of their own."""

WEIGHTS: dict[tuple[int, int], tuple[float, str]] = {
    (576, 7168): (4.21, "quarter eighth even16 half even32 wide"),
    (2880, 4096): (7.40, "half even16 wide even32 registers tiles"),
    (3584, 3584): (7.32, "even16 wide half even32 tiles registers"),
    (4608, 3584): (9.36, "tiles even16 three even32 rows32 registers"),
    (5120, 2880): (8.83, "tiles even16 three even32 rows32 registers"),
    (4096, 4096): (9.61, "wide even16 tiles even32 registers half"),
    (7680, 5120): (18.99, "even32 tiles even64 even16 three evict"),
    (24576, 1536): (18.03, "three even32 rows32 tiles even16 evict"),
    (3584, 18944): (30.67, "even64 even32 half even16 evict quarter"),
    (7168, 16384): (51.56, "even64 even32 tiles even16 evict half"),
    (37888, 3584): (59.59, "three even32 even64 rows32 evict tiles"),
}
"""N×K: how many µs an H200 took to read it in a CUDA graph over rotating copies, and what is expected to be fast."""

Judge = Callable[[Candidate], Verdict]
FAULTS = (RuntimeError, OSError, ValueError, ArithmeticError, LookupError)
"""Of the harness, such as HarnessFault: what is wrong with a kernel is its verdict."""


def knobs_of(name: str, rows: int) -> Knobs:
    """The whole setting of that name."""
    chosen = SETTINGS[name].get(rows, SETTINGS[name][8])
    return {knob: values[0] for knob, values in FAMILY.knobs.items()} | {"tile_m": rows} | chosen


def candidate(name: str, problem: Problem) -> Candidate:
    return Candidate(corpus.render(FAMILY, knobs_of(name, problem.m), "tn"), problem, TARGET.name)


def order(problem: Problem, count: int) -> list[str]:
    """Names of settings, the most promising first."""
    first = WEIGHTS[problem.n, problem.k][1].split()
    return [*first, *(name for name in SETTINGS if name not in first)][:count]


def judged(judge: Judge, name: str, problem: Problem, effort: str) -> dict[str, Any]:
    """What came of one setting, as a line of the results; whatever fails is data."""
    started = time.monotonic()
    line: dict[str, Any] = {"problem": problem.mnk, "name": name, "knobs": knobs_of(name, problem.m), "effort": effort}
    try:
        verdict = judge(candidate(name, problem))
    except FAULTS as error:  # one setting does not end the run
        line |= {"status": "fault", "reason": f"{type(error).__name__}: {error}"}
    else:
        line |= {"status": str(verdict.status), "reason": verdict.reason, "rho": verdict.rho}
        if timing := verdict.timing:
            floor = WEIGHTS[problem.n, problem.k][0]
            line |= {"us": timing.candidate_us, "speedup": timing.speedup, "low": timing.low, "high": timing.high}
            line |= {"baseline": timing.baseline, "baseline_us": timing.baseline_us, "confidence": timing.confidence}
            line |= {"floor_us": floor, "of_floor": floor / timing.candidate_us}
    return line | {"seconds": round(time.monotonic() - started, 2)}


def study(
    problem: Problem, names: Sequence[str], quick: Judge, proper: Judge, until: float, write: Callable[[dict], None]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The best setting's line, judged properly where that went well, and all lines of quick judgements.

    At least one setting is judged; then as many as there is time for before `until`, of the monotonic clock.
    """
    lines: list[dict[str, Any]] = []
    for name in names:
        if lines and time.monotonic() > until:
            break
        lines.append(judged(quick, name, problem, "quick"))
        write(lines[-1])
    right = sorted((line for line in lines if "us" in line), key=lambda line: -line["speedup"])
    if not right:
        return None, lines
    again = judged(proper, right[0]["name"], problem, "default")
    write(again)
    return again if "us" in again else right[0], lines


def shown(problem: Problem, best: dict[str, Any] | None, lines: Sequence[dict[str, Any]]) -> str:
    """One line for the best, one for each that failed."""
    text = f"{problem.mnk:<16} no correct kernel among {len(lines)}"
    if best:
        usual = {knob: values[0] for knob, values in FAMILY.knobs.items()}
        knobs = " ".join(f"{knob}={value}" for knob, value in best["knobs"].items() if value != usual[knob])
        text = (
            f"{problem.mnk:<16} {best['us']:7.2f} µs  {best['speedup']:.3f} × [{best['low']:.3f}, {best['high']:.3f}] "
            f"{best['baseline']}  floor {best['floor_us']:.2f} ({best['of_floor']:.2f} of it)  "
            f"{best['name']} of {len(lines)}: {knobs} ({best['effort']})"
        )
    failed = (line for line in lines if line["status"] != "ok")
    return "\n".join([text, *(f"    {line['name']}: {line['status']}: {line['reason'][:160]}" for line in failed)])


def known(problem: Problem, lines: Iterable[dict[str, Any]], most: int = 3) -> list[Known]:
    """As `data/settings` has them: the fastest few, first the fastest."""
    right = sorted((line for line in lines if "us" in line), key=lambda line: line["us"])
    return [Known(problem.mnk, "tn", FAMILY.name, line["knobs"]) for line in right[:most]]


def forgiving(worker: Worker) -> Judge:
    """Judges; after a fault of the harness the next candidate gets fresh processes."""

    def judge(candidate: Candidate) -> Verdict:
        try:
            return worker.evaluate(candidate)
        except FAULTS:
            worker.close()
            raise

    return judge


def configs(cache: str) -> tuple[WorkerConfig, WorkerConfig]:
    """The worker's config `quick`, and its defaults; neither waits long for a kernel that hangs."""
    values = {"cache": cache, "run_seconds": 10.0, "verdict_seconds": 20.0, "compile_seconds": 120.0}
    quick = OmegaConf.to_container(OmegaConf.load(asset("conf", "worker", "quick.yaml")))
    return msgspec.convert({**quick, **values}, WorkerConfig), msgspec.convert(values, WorkerConfig)  # type: ignore[dict-item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--rows", default="8,16")
    parser.add_argument("--weights", default=",".join(f"{n}x{k}" for n, k in WEIGHTS))
    parser.add_argument("--settings", type=int, default=len(SETTINGS))
    given = parser.parse_args()
    deadline = time.monotonic() + given.seconds
    weights = [tuple(map(int, text.split("x"))) for text in given.weights.split(",")]
    problems = [Problem(int(rows), n, k) for rows in given.rows.split(",") for n, k in weights]
    given.out.mkdir(parents=True, exist_ok=True)
    logs = []
    quick, proper = configs(str(given.out / "cache"))
    with (
        (given.out / "verdicts.jsonl").open("a") as verdicts,
        (given.out / "settings.jsonl").open("a") as settings,
        Worker(quick, TARGET.name) as first,
        Worker(proper, TARGET.name) as again,
    ):

        def write(line: dict[str, Any]) -> None:
            print(msgspec.json.encode(line).decode(), file=verdicts, flush=True)

        first.begin_building(
            [candidate(name, problem) for problem in problems for name in order(problem, given.settings)]
        )
        for number, problem in enumerate(problems):
            share = (deadline - time.monotonic()) / (len(problems) - number)
            # Some of it is for the second judgement.
            until = time.monotonic() + 0.75 * share
            names = order(problem, given.settings)
            best, lines = study(problem, names, forgiving(first), forgiving(again), until, write)
            print(shown(problem, best, lines), flush=True)
            for one in known(problem, lines):
                print(msgspec.json.encode(one).decode(), file=settings, flush=True)
            logs += [math.log(best["speedup"])] if best else []
            if time.monotonic() > deadline:
                print(f"time is up after {number + 1} of {len(problems)}")
                break
    if logs:
        print(f"geometric mean of {len(logs)}: {math.exp(sum(logs) / len(logs)):.3f}")


if __name__ == "__main__":
    main()
