"""How many edits a second, how narrow their intervals, and how near to 1 the unedited kernel beside itself.

    python experiments/sass/pace.py walks.json > pace.txt        # on the GPU; walks.json: see walks.py

The first kernel of each family at several sizes: legal schedules as a search has them measured, then A/A as a search
would (`quick`) and as a winner is confirmed (`thorough`).
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import walks

from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate, Edit, Measured, Status
from cudal2.worker.cuda.editing import EditBench, parent_of
from cudal2.worker.worker import Worker

SIZES = ("512_512_512", "1024_1024_1024", "2048_2048_2048", "4096_4096_4096", "8192_8192_8192")
EDITS, REPEATS = 16, 10


def trusting(edits: Sequence[Edit]) -> list[str]:
    """Every edit is let through: walks.py has proved these."""
    return [""] * len(edits)


def width(found: Sequence[Measured]) -> float:
    """Half an interval, in percent, in the median."""
    return 50 * float(np.median([(one.high - one.low) / one.speedup for one in found] or [0]))


def main() -> None:
    kernels = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[walks.Kernel])
    first = list({one.family: one for one in reversed(kernels)}.values())
    print(
        "family      size             edits/s   pairs    ±%   A/A, least and most    ±%   confirmed A/A         s each"
    )
    with Worker(WorkerConfig(protocols=()), walks.TARGET) as worker:
        for kernel in first:
            for size in SIZES:
                problem = parse(size, kernel.layout, "f32")  # type: ignore[arg-type]
                try:
                    parent = parent_of(worker, Candidate(kernel.source, problem, walks.TARGET))
                    with EditBench(worker, parent, problem, trusting) as bench:
                        show(kernel, size, bench)
                except ValueError as error:
                    print(f"{kernel.family:<11} {size:<15} {error}", flush=True)


def show(kernel: walks.Kernel, size: str, bench: EditBench) -> None:
    bench.measure(kernel.edits()[:1])  # checks the parent
    started = time.perf_counter()
    found = bench.measure(kernel.edits()[1 : 1 + EDITS])
    pace = EDITS / (time.perf_counter() - started)
    bad = [one for one in found if one.status is not Status.OK]
    good = [one for one in found if one.status is Status.OK]
    same = [one for one in (bench.floor() for _ in range(REPEATS)) if one.status is Status.OK]
    started = time.perf_counter()
    sure = [bench.floor(thoroughly=True) for _ in range(3)]
    seconds = (time.perf_counter() - started) / 3
    least, most = (choose((one.speedup for one in same), default=0) for choose in (min, max))
    print(
        f"{kernel.family:<11} {size:<15} {pace:>8.1f}  {np.median([one.pairs for one in good] or [0]):>6.0f} "
        f"{width(good):>5.2f}   {least:.4f} {most:.4f}     {width(same):>5.2f}   "
        f"{' '.join(f'{one.speedup:.4f}' for one in sure)}  {seconds:.2f}"
        + f"  {len(bad) + REPEATS - len(same)} not ok"
        * (len(bad) + REPEATS > len(same)),
        flush=True,
    )


if __name__ == "__main__":
    main()
