"""Verdicts a minute of several checkouts on the same sources, in turn, each time with an empty cache.

    git worktree add /tmp/before 662c78f
    python experiments/worker/turns.py /tmp/before . [--problem 256_256_256] [--target cpu] [--count 24] [--rounds 3]

`cudal2 bench worker` draws other kernels wherever families changed, so it cannot compare two versions. A line for each
checkout and round: verdicts, how many are right, verdicts a minute, and the seconds of each stage, means per verdict.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

QUICK = {"min_pairs": 3, "max_pairs": 7, "precision": 0.03, "timing_seconds": 0.3, "confidence": 0.7}
"""worker=quick, whose file an old checkout may not have."""


def judge(file: Path, problem: str, target: str, cache: str) -> None:
    """Judges the sources in `file` by the cudal2 that PYTHONPATH names."""
    from cudal2.config import WorkerConfig
    from cudal2.problem import parse
    from cudal2.records import Candidate
    from cudal2.worker.pool.pool import Pool

    candidates = [Candidate(source, parse(problem), target) for source in json.loads(file.read_text())]
    with Pool(WorkerConfig(**QUICK, cache=cache), target) as pool:
        pool.environment()
        started = time.perf_counter()
        verdicts = [verdict for verdict in pool.evaluate(candidates) if verdict is not None]
        wall = time.perf_counter() - started
    stages: Counter[str] = Counter()
    for verdict in verdicts:
        stages.update(verdict.seconds)
    means = " ".join(f"{stage} {seconds / len(verdicts):.3f}" for stage, seconds in stages.items())
    right, pace = sum(one.ok for one in verdicts), 60 * len(verdicts) / wall
    print(f"{len(verdicts)} verdicts, {right} ok, {pace:.1f}/min  {means}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path)
    parser.add_argument("--problem", default="256_256_256")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--judge", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.judge:
        judge(Path(asked.judge[0]), asked.problem, asked.target, asked.judge[1])
        return
    from cudal2 import corpus
    from cudal2.problem import parse
    from cudal2.target import find

    rng, problem, target = random.Random(0), parse(asked.problem), find(asked.target)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sources.json"
        file.write_text(json.dumps([corpus.draw(target, problem, rng).source for _ in range(asked.count)]))
        for number in range(asked.rounds):
            for checkout in asked.checkouts:
                cache = str(Path(folder) / f"{number}-{checkout.resolve().name}")
                command = [sys.executable, str(Path(__file__).resolve()), str(checkout), "--judge", str(file), cache]
                command += ["--problem", asked.problem, "--target", asked.target]
                environment = os.environ | {"PYTHONPATH": str(checkout.resolve())}
                print(checkout, end="  ", flush=True)
                subprocess.run(command, check=True, cwd=folder, env=environment)


if __name__ == "__main__":
    main()
