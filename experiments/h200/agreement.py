"""Do the worker's times of auto-tuned cuBLASLt agree with an independent measurement of the same card type?

    python experiments/h200/agreement.py

`reference.csv` holds microseconds a call from another program on another H200: the fastest of up to 100 algorithms,
replayed from a CUDA graph over buffers rotated through 200 MB. Prints the ratio ours/theirs for each shape and layout,
and the median.
"""

import csv
import statistics
from pathlib import Path

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.worker.cuda import device
from cudal2.worker.worker import Worker

NAMES = ("cublaslt-auto-nn", "cublaslt-auto-tn")


def main() -> None:
    with Path(__file__).with_name("reference.csv").open() as file:
        reference = list(csv.DictReader(file))
    ratios = []
    with Worker(WorkerConfig(), device.find().target.name) as worker:
        for row in reference:
            ours = worker.baseline_seconds(parse(row["mnk"]))
            pairs = [(1e6 * ours[name], float(row[name])) for name in NAMES]
            ratios += [mine / theirs for mine, theirs in pairs]
            figures = "   ".join(f"{mine:8.2f} / {theirs:8.2f} = {mine / theirs:.3f}" for mine, theirs in pairs)
            print(f"{row['mnk']:>18}   {figures}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f} over {len(ratios)}")


if __name__ == "__main__":
    main()
