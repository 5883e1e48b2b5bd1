"""The published kernels that read what may not have arrived, with every wait made a full one: are they right then?

    python experiments/audit/mend.py CUDA-L2/kernels/h100_F32F16F16F32 mended
    cudal2 eval runs/mended source=mended shapes=$(cat mended/shapes) abi=cuda-l2 target=sm_90a worker=sweep \
      worker.compile_seconds=900

Takes those of cause *missing wait* in causes.csv. Three of them need a barrier as well (their `why` says so), and get
none. `cp.async.wait_group N` lets the last N groups of copies be under way; 0 waits for all of them.
https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-group
"""

import csv
import re
import sys
from pathlib import Path

WAITS = (
    (re.compile(r"\b(cp_async_wait\w*)\s*<[^<>]*>\s*\("), r"\1<0>("),
    (re.compile(r"(cp\.async\.wait_group\s+)(?:%\d|\d+)"), r"\g<1>0"),
)
"""How the sources write a wait: as CuTe's function or one of their own, and in PTX."""


def mended(source: str) -> str:
    for wait, full in WAITS:
        source = wait.sub(full, source)
    return source


def main() -> None:
    published, folder = map(Path, sys.argv[1:3])
    with (Path(__file__).parent / "causes.csv").open() as file:
        names = [row["kernel"] for row in csv.DictReader(file) if row["cause"] == "missing wait"]
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        source = (published / f"{name}.cu").read_text()
        changed = mended(source)
        if changed == source:
            raise SystemExit(f"{name}: no wait was found")
        (folder / f"{name}.cu").write_text(changed)
    (folder / "shapes").write_text(",".join(names))
    print(f"{len(names)} kernels in {folder}")


if __name__ == "__main__":
    main()
