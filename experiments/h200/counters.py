"""Hardware counters of chosen kernels (cudal2/worker/cuda/counters.py), a line for each.

    python experiments/h200/counters.py KERNELS.jsonl > counters.tsv

KERNELS.jsonl holds {"problem": "M_N_K", "family": …, "knobs": {…}} on each line. Needs a GPU and ncu; kernels are
checked, not timed.
"""

import json
import sys
from pathlib import Path

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.worker.cuda import counters, device
from cudal2.worker.worker import Worker


def main(path: str) -> None:
    target = device.find().target
    families = {family.name: family for family in corpus.families(target)}
    names = list(counters.metrics(target).values())
    print("\t".join(["family", "problem", "status", *names]))
    with Worker(WorkerConfig(protocols=(), counters=True, compile_seconds=300), target.name) as worker:
        for kernel in map(json.loads, Path(path).read_text().splitlines()):
            problem = parse(kernel["problem"])
            source = corpus.render(families[kernel["family"]], kernel["knobs"], problem.layout)
            verdict = worker.evaluate(Candidate(source, problem, target.name))
            cells = [f"{verdict.counters[name]:.4g}" if name in verdict.counters else "" for name in names]
            print("\t".join([kernel["family"], kernel["problem"], verdict.status, *cells]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
