"""How often an attack is found out that any one verdict may miss, or an honest kernel is not: verdicts on the same
kernel, each judged anew, beside so many busy programs.

    PYTHONPATH=tests/helpers python experiments/worker/found.py tests/worker/kernels/bias_read_ahead.cpp --worker quick

Another checkout in front of PYTHONPATH is asked instead of this one. A line: how often each status came, the seconds of
a verdict, and the least, the median and the largest speedup.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heading import directive
from turns import QUICK

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate, HarnessFault
from cudal2.worker.worker import Worker

BUSY = "import os; started = os.getppid()\nwhile os.getppid() == started: pass"
"""Ends with whoever started it, however that ends."""
WORKERS: dict[str, dict[str, float]] = {
    "quick": QUICK,
    "default": {},
    "once": QUICK | {"min_pairs": 1, "max_pairs": 1},  # a batch, of which three or more make a verdict elsewhere
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("attack", type=Path)
    parser.add_argument("--worker", choices=WORKERS, default="quick")
    parser.add_argument("--verdicts", type=int, default=40)
    parser.add_argument("--problem")
    parser.add_argument("--define", default="", help="what the source's first line defines, such as 'KIND 1'")
    parser.add_argument("--busy", type=int, default=0)
    given = parser.parse_args()
    text = (f"#define {given.define}\n" if given.define else "") + given.attack.read_text()
    problem = parse(given.problem or directive(text, "problem", "128_96_160_tn_f32"))
    statuses, speedups = Counter[str](), list[float]()
    # A busy machine is no reason to give up here: nobody asks how fast the kernel is.
    with (
        tempfile.TemporaryDirectory() as cache,
        Worker(WorkerConfig(**WORKERS[given.worker], cache=cache, disturbed=1e3)) as worker,
        others(given.busy),
    ):
        started = time.perf_counter()
        for number in range(given.verdicts):  # none is judged twice
            try:
                verdict = worker.evaluate(Candidate(f"{text}// {number}\n", problem))
            except HarnessFault:
                statuses["disturbed"] += 1
                continue
            statuses[verdict.status.value] += 1
            speedups += [verdict.timing.speedup] if verdict.timing else []
        seconds = (time.perf_counter() - started) / given.verdicts
    print(f"{given.attack.stem}, worker={given.worker}: {dict(statuses)}, {seconds:.2f} s a verdict", end=", ")
    print(*(f"{of(speedups):.2f}" for of in (min, statistics.median, max) if speedups))


@contextmanager
def others(count: int) -> Iterator[None]:
    """So many programs that want a core each."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()


if __name__ == "__main__":
    main()
