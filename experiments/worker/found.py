"""How often an attack is found out that any one verdict may miss: verdicts on the same kernel, each judged anew.

    PYTHONPATH=tests/helpers python experiments/worker/found.py tests/worker/kernels/bias_read_ahead.cpp --worker quick

Another checkout in front of PYTHONPATH is asked instead of this one. A line: how often each status came, and the
seconds of a verdict.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from heading import directive
from turns import QUICK

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.worker.worker import Worker

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
    given = parser.parse_args()
    text = given.attack.read_text()
    problem, statuses = parse(directive(text, "problem", "128_96_160_tn_f32")), Counter[str]()
    # A busy machine is no reason to give up here: nobody asks how fast the kernel is.
    with (
        tempfile.TemporaryDirectory() as cache,
        Worker(WorkerConfig(**WORKERS[given.worker], cache=cache, disturbed=1e3)) as worker,
    ):
        started = time.perf_counter()
        for number in range(given.verdicts):  # none is judged twice
            statuses[worker.evaluate(Candidate(f"{text}// {number}\n", problem)).status.value] += 1
        seconds = (time.perf_counter() - started) / given.verdicts
    print(f"{given.attack.stem}, worker={given.worker}: {dict(statuses)}, {seconds:.2f} s a verdict")


if __name__ == "__main__":
    main()
