"""Hardware counters of chosen kernels, a line each, read with ncu.

    python experiments/h200/counters.py KERNELS.jsonl > experiments/h200/counters.txt

KERNELS.jsonl holds {"problem": "M_N_K", "family": …, "knobs": {…}} on each line. Needs the toolkit's nvcc and ncu.
The clocks are left alone; the third of three calls is measured, the caches flushed by ncu before.
"""

import csv
import io
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.worker import jail
from cudal2.worker.cache import Cache
from cudal2.worker.cuda import build, device

METRICS = {
    "gpu__time_duration.sum": "us",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed": "tensor",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": "l1",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "dram__bytes_read.sum": "read",
    "dram__bytes_write.sum": "written",
    "l1tex__data_bank_conflicts_pipe_lsu.sum": "conflicts",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "blocks",
    "launch__waves_per_multiprocessor": "waves",
}
"""What is asked of ncu and how the table calls it; shares are per cent of what the chip can do in that time."""


def measure(launch: Path, library: Path, mnk: str) -> dict[str, str]:
    """The counters of one kernel by the table's names; empty where ncu has none of them."""
    command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base"]
    command += ["--kernel-name", "regex:^(?!fill)", "--launch-skip", "2", "--launch-count", "1"]
    command += ["--metrics", ",".join(METRICS), str(launch), str(library), *mnk.split("_"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    rows = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if not rows:
        print(done.stdout[-500:], done.stderr[-500:], file=sys.stderr)
        return {}
    found = {row["Metric Name"]: row["Metric Value"] for row in csv.DictReader(io.StringIO("\n".join(rows)))}
    return {name: found[metric] for metric, name in METRICS.items() if metric in found}


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
            counters = measure(launch, library, kernel["problem"])
            print(
                "\t".join([kernel["family"], kernel["problem"], *(counters.get(name, "") for name in METRICS.values())])
            )


if __name__ == "__main__":
    main(sys.argv[1])
