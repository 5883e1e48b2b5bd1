"""Hardware counters of chosen kernels, read with ncu.

    python experiments/h200/counters.py KERNELS.jsonl > experiments/h200/counters.txt

KERNELS.jsonl holds {"problem": "M_N_K", "family": …, "knobs": {…}} on each line. Needs the toolkit's nvcc and ncu.
The clocks are left alone; the last of three calls is measured, a line for each of its kernels, caches flushed by ncu.
"""

import csv
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import device
from cudal2.worker.cuda.compile import build
from cudal2.worker.sandbox import jail

METRICS = {
    "gpu__time_duration.sum": "ns",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": "l1",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "dram__bytes_read.sum": "read",
    "dram__bytes_write.sum": "written",
    "lts__t_sectors_op_read.sum": "sectors",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "conflicts",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "blocks",
    "launch__waves_per_multiprocessor": "waves",
}
"""What is asked of ncu and how the table calls it: shares are per cent of what the chip can do in that time, `read` and
`written` bytes of memory, `sectors` the 32-byte reads that reach the L2."""
FILLS = 3
"""Kernels that `launch` runs before the calls."""
CALLS = 3


def measure(launch: Path, library: Path, mnk: str) -> list[dict[str, str]]:
    """The counters of each kernel of the last of three calls, by the table's names; [] where ncu failed."""
    command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--launch-skip", str(FILLS)]
    command += ["--metrics", ",".join(METRICS), str(launch), str(library), *mnk.split("_"), str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    kernels: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')):
        if row["Metric Name"] in METRICS:
            kernels.setdefault(row["ID"], {})[METRICS[row["Metric Name"]]] = row["Metric Value"]
    if not kernels:
        print(done.stdout[-500:], done.stderr[-500:], file=sys.stderr)
    return list(kernels.values())[-len(kernels) // CALLS :] if kernels else []


def main(path: str) -> None:
    kernels = [json.loads(line) for line in Path(path).read_text().splitlines()]
    target = device.find().target
    families = {family.name: family for family in corpus.families(target)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launch = folder / "launch"
        source = Path(__file__).parents[2] / "tests" / "families" / "launch.cu"
        subprocess.run(["nvcc", "-O2", str(source), "-o", str(launch), "-ldl"], check=True)
        cache, kind = Cache(folder / "cache"), jail.choose(WorkerConfig().jail)

        def make(number: int) -> Path:
            kernel = kernels[number]
            text = corpus.render(families[kernel["family"]], kernel["knobs"], parse(kernel["problem"]).layout)
            path = folder / f"{number}.so"
            path.write_bytes(build.build(text, target, cache, kind, seconds=300).library)
            return path

        with ThreadPoolExecutor() as threads:
            libraries = list(threads.map(make, range(len(kernels))))
        columns = ["family", "problem", *METRICS.values()]
        print("\t".join(columns))
        for kernel, library in zip(kernels, libraries):
            for counters in measure(launch, library, kernel["problem"]):
                cells = [kernel["family"], kernel["problem"], *(counters.get(name, "") for name in METRICS.values())]
                print("\t".join(cells), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
