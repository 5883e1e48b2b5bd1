"""What the queue of `cudal2 serve` costs: the same kernels by 64 clients at once, and by `Pool.evaluate` in one call.

    python experiments/serving/load.py [clients=64] [kernels=64] [rounds=2] [worker.KEY=VALUE …]

In each round every kernel is judged anew, in an empty cache, in one way and then in the other. The clients ask for all
of theirs twenty times more, which the archive answers.
"""

import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.bench import table
from cudal2.config import BenchConfig, load
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.serving.client import Client
from cudal2.target import CPU
from cudal2.worker.pool.pool import Pool

PROBLEM, AGAIN = "64_64_64", 20


def drawn(count: int, seed: int) -> list[str]:
    """Different kernels of the corpus."""
    rng, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found[corpus.draw(CPU, parse(PROBLEM), rng).source] = None
    return list(found)


def direct(sources: list[str], cache: Path, worker: list[str]) -> dict[str, object]:
    config = load("bench", ["worker=quick", f"worker.cache={cache}", *worker], BenchConfig).worker
    with Pool(config) as pool:
        pool.environment()
        began = time.perf_counter()
        verdicts = pool.evaluate([Candidate(source, parse(PROBLEM)) for source in sources])
        wall = time.perf_counter() - began
    print(f"Pool.evaluate: {wall:.1f} s", flush=True)
    return {"way": "Pool.evaluate", "seconds": wall, "verdicts": sum(one is not None for one in verdicts)}


def served(sources: list[str], clients: int, folder: Path, worker: list[str]) -> list[dict[str, object]]:
    words = ["-m", "cudal2.cli", "serve", f"run={folder / 'run'}", "port=0", f"worker.cache={folder / 'cache'}"]
    limits = ["limits.per_minute=1000000"]
    server = subprocess.Popen([sys.executable, *words, *limits, *worker], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        url = server.stdout.readline().split()[0]
        asks = [Client(url, patience=60) for _ in range(clients)]

        def one(number: int) -> list[float]:
            waits = []
            for source in sources[number::clients]:
                began = time.perf_counter()
                asks[number].source(PROBLEM, source)
                waits.append(time.perf_counter() - began)
            return waits

        rows = []
        with ThreadPoolExecutor(clients) as threads:
            for way, times in (("64 clients", 1), ("again", AGAIN)):
                began = time.perf_counter()
                waits = [wait for _ in range(times) for found in threads.map(one, range(clients)) for wait in found]
                wall = time.perf_counter() - began
                rows.append({"way": way.replace("64", str(clients)), "seconds": wall, "verdicts": len(waits)})
                rows[-1] |= {"wait_median_s": median(waits), "wait_max_s": max(waits)}
        health = asks[0].health()
        print({name: health[name] for name in ("judged", "recalled", "left", "batches")})
    finally:
        server.terminate()
        server.wait()
    with Archive.of(folder / "run") as archive:
        samples = len(list(archive.samples("serve")))
        ((verdicts,),) = archive.rows("SELECT COUNT(*) FROM verdicts")
        ((different,),) = archive.rows("SELECT COUNT(DISTINCT source) FROM verdicts")
    print(f"archive: {samples} samples, {verdicts} verdicts on {different} kernels")
    return rows


def main() -> None:
    given = {"clients": 64, "kernels": 64, "rounds": 2}
    worker = [word for word in sys.argv[1:] if word.startswith("worker.")]
    given |= {key: int(value) for word in sys.argv[1:] if word not in worker for key, _, value in [word.partition("=")]}
    rows: list[dict[str, object]] = []
    for number in range(given["rounds"]):
        sources = drawn(given["kernels"], number)
        with tempfile.TemporaryDirectory() as name:
            for way in (0, 1) if number % 2 else (1, 0):  # each goes first in every other round
                if way:
                    rows += served(sources, given["clients"], Path(name), worker)
                else:
                    rows.append(direct(sources, Path(name) / "direct", worker))
    for row in rows:
        row["each_ms"] = 1e3 * float(str(row["seconds"])) / int(str(row["verdicts"]))
    columns = ("way", "verdicts", "seconds", "each_ms", "wait_median_s", "wait_max_s")
    print(table([{name: row.get(name, "") for name in columns} for row in rows]))


if __name__ == "__main__":
    main()
