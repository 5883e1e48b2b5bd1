"""Why the edits that games found are faster: what the hardware counts beside the unedited kernel.

    python experiments/sass/why.py games games-0.json games-1.json > why.txt

The folder is the one that `games.py make` filled, the files are what its `play` wrote. Of each kernel the edit with the
highest lower bound is counted in turn with the unedited kernel, three times (cudal2/worker/cuda/counters.py). A counter
is shown where the edited kernel's three values lie all above or all below the unedited one's. Needs a GPU and ncu.
"""

import argparse
from pathlib import Path
from statistics import median

import msgspec

from cudal2.bench import table
from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate, Edit
from cudal2.worker.backend import Portable
from cudal2.worker.cuda import device, foreign
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.worker import Worker

TIMES = 3


def whole(judge: Worker, folder: Path, name: str, problem: str) -> Portable:
    """The kernel as the compiler left it: a source of the folder, or a cubin with its launch."""
    path = folder / f"{name}-{problem}"
    if path.is_dir():
        return foreign.portable(path)
    source = path.with_suffix(".cu").read_text()
    return judge.portable(Candidate(source, parse(problem, "tn", "f32"), judge.target.name))


def moved(before: list[dict[str, float]], after: list[dict[str, float]]) -> list[dict[str, object]]:
    """A row for each counter whose values before and after do not overlap."""
    rows: list[dict[str, object]] = []
    for name in before[0]:
        old, new = [one[name] for one in before], [one[name] for one in after]
        if min(new) > max(old) or max(new) < min(old):
            rows.append({"counter": name, "unedited": median(old), "edited": median(new), "noise": max(old) - min(old)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("games", type=Path, nargs="+")
    parser.add_argument("--cache", default=WorkerConfig().cache)
    arguments = parser.parse_args()
    with Worker(WorkerConfig(protocols=(), cache=arguments.cache), device.find().target.name) as judge:
        for row in (row for path in arguments.games for row in msgspec.json.decode(path.read_bytes())):
            best = max((one for one in row["found"] if one["confirmed"]), key=lambda one: one["confirmed"]["low"])
            problem = parse(row["problem"], "tn", "f32")
            parent = whole(judge, arguments.folder, row["kernel"], row["problem"])
            edited = msgspec.structs.replace(parent, code=cubin.apply(parent.code, msgspec.convert(best["edit"], Edit)))
            print(f"{row['kernel']} {row['problem']}: {best['confirmed']['speedup']:.3f} by {best['method']}")
            turns = [(judge.count(parent, problem), judge.count(edited, problem)) for _ in range(TIMES)]
            if not all(map(all, turns)):  # the log says why; the others may be counted
                continue
            rows = moved(*map(list, zip(*turns)))
            print(f"{table(rows) if rows else 'nothing that is beyond the noise'}\n", flush=True)


if __name__ == "__main__":
    main()
