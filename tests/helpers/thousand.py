"""An evaluation of the grid that nobody measured: rows, and a run with sources, parents, failures and a search."""

import random
from pathlib import Path

from specimens import HERE

from cudal2 import corpus
from cudal2.archive.store import Archive
from cudal2.evaluation.records import Results, Row
from cudal2.evaluation.results import save
from cudal2.problem import Problem, grid
from cudal2.records import STRICT, Candidate, Environment, Status, Timing, Verdict, digest, to_json
from cudal2.search.proposer import Mutated, Setting
from cudal2.target import CPU

BASELINES = {"cublaslt-auto-tn": 1.0, "cublas-tn": 1.08, "cublas-nn": 1.04, "torch-tn": 1.1}
PROTOCOLS = ("device", "offline")


def timings(problem: Problem, rng: random.Random) -> tuple[Timing, ...]:
    """Faster than the baselines where there is little work, about as fast where there is much."""
    speedup = rng.gauss(1 + 0.5 / (1 + problem.flop / 1e9) ** 0.3, 0.05)
    us = max(problem.flop / 9e8, problem.bytes / 4e6) + 2
    return tuple(
        Timing(name, protocol, us, us * ratio, ratio, ratio * 0.995, ratio * 1.005, 9, 100, confidence=STRICT)
        for protocol in PROTOCOLS
        for name, slower in BASELINES.items()
        for ratio in [speedup * slower * rng.uniform(0.995, 1.005)]
    )


def rows(shapes: int = 1000) -> list[Row]:
    """Of so many shapes of the grid, one of a hundred without a correct kernel."""
    rng = random.Random(0)
    found = []
    for place, problem in enumerate(grid()[:shapes]):
        source = digest(f"{place}")
        made = timings(problem, rng) if place % 100 != 50 else ()
        fields = {"problem": problem, "fingerprint": HERE.fingerprint, "kernel": source, "timings": made}
        found.append(Row(**fields, status="ok" if made else "wrong"))
    return found


def run(folder: Path, shapes: int = 1000, sources: int = 200, environment: Environment = HERE) -> list[Row]:
    """A run with the same rows: of each shape a first kernel, one made of it, which the rows are of, and a failure."""
    rng = random.Random(0)
    drawn = [corpus.draw(CPU, "tn", rng) for _ in range(sources)]
    evaluated = []
    with Archive.of(folder) as archive:
        for row in rows(shapes):
            sample, problem = rng.choice(drawn), row.problem
            setting, text = Setting(sample.family, sample.knobs), sample.source
            first = Candidate(text, problem)
            better = Candidate(text.replace("return 0;", f"return {problem.flop} * 0;"), problem)
            failed = Candidate(f"{text}// failed {problem.name}\n", problem)
            mutated = Mutated(("constants",), first.kernel_hash[:12], setting)
            tried = [
                (first, setting, Status.OK, timings(problem, rng)),
                (better, mutated, Status(row.status), row.timings),
                (failed, mutated, Status.WRONG, ()),
            ]
            for index, (kernel, prompt, status, made) in enumerate(tried):
                where = {"run": f"cpu {problem.name} 0123 here", "step": index, "index": 0, "policy": "mutation"}
                verdict = Verdict(kernel.key, problem, "cpu", status, environment, timings=made, reason="ρ = 12")
                archive.add(verdict, kernel, {"kind": "search", "prompt": to_json(prompt), **where})
            fields = {"problem": problem, "fingerprint": environment.fingerprint, "status": row.status}
            evaluated.append(Row(**fields, kernel=better.kernel_hash, timings=row.timings))
    save(folder, Results({environment.fingerprint: environment}, tuple(evaluated)))
    return evaluated
