"""Does a kernel gain that asks for a slice of every set still to come (slices.cu)? Beside its twin that asks for none.

    python experiments/worker/slices.py slices.jsonl      # on a GPU, about a minute

Judges both in turn, and writes a line for each verdict. Prints what the touches of a call take, in seconds by their
number.
"""

import json
import sys
import tempfile
from pathlib import Path

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.worker.worker import Worker

SHAPE, SLICES, ROUNDS = "8_4096_4096", (11, 0), 6


def main(out: Path) -> None:
    text = Path(__file__).with_name("slices.cu").read_text()
    judged = [
        (mib, Candidate(f"#define SLICE ({mib}u << 20)  // {turn}\n{text}", parse(SHAPE), "sm_90a"))
        for turn in range(ROUNDS)
        for mib in SLICES
    ]
    with tempfile.TemporaryDirectory() as cache, Worker(WorkerConfig(cache=cache), "sm_90a") as worker:
        worker.begin_building([candidate for _, candidate in judged])
        print(worker.backend.bench.vendor.touch_seconds)
        with out.open("w") as lines:
            for mib, candidate in judged:
                verdict = worker.evaluate(candidate)
                row = {"slice_mib": mib, "status": verdict.status.value}
                if timing := verdict.timing:
                    row |= {name: round(getattr(timing, name), 4) for name in ("speedup", "low", "high")}
                    row |= {"us": round(timing.candidate_us, 2), "baseline_us": round(timing.baseline_us, 2)}
                print(json.dumps(row), file=lines, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
