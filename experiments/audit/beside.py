"""What a published table claims of the kernels that the judge found right, and of those that it did not.

    python experiments/audit/beside.py RUN …/cuda_l2_h100_F32F16F16F32_speedup_offline.csv

RUN was made by `cudal2 eval RUN source=FOLDER abi=cuda-l2`. For each verdict: how many kernels, the arithmetic mean
of the published speedups over auto-tuned cuBLASLt, and, of kernels that could be timed, ours by the GPU's clock.
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from cudal2.evaluation import audit, published, results, tables
from cudal2.evaluation.records import Row

LIBRARY = tables.MAX["cublaslt-auto"]


def main() -> None:
    run, table = map(Path, sys.argv[1:3])
    theirs = published.read(table)
    (figures,) = (theirs.figures[one] for one in theirs.figures if one.name.lower() == "cublaslt-auto-tuning-max")
    claimed = {shape[:3]: figure for shape, figure in figures.items()}
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in audit.judged(results.load(run).rows):
        kinds[audit.kind(row)].append(row)
    print(f"{'verdict':<14} {'kernels':>7} {'published':>9} {'ours':>6}")
    for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1])):
        said = [claimed[row.problem.m, row.problem.n, row.problem.k] for row in rows]
        timed = [timing.speedup for row in rows if (timing := tables.against(row, LIBRARY, "device"))]
        print(f"{kind:<14} {len(rows):>7} {fmean(said):>9.3f} {f'{fmean(timed):.3f}' if timed else '':>6}")


if __name__ == "__main__":
    main()
