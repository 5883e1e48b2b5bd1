"""Does a kernel gain by loads that leave the L2 first (`evict_first`), because the L2 holds inputs before it is timed?

    python experiments/worker/evicting.py > evicting.txt      # on a GPU, about three minutes

Judges a known kernel of each shape, which loads B with that hint, and the same without it, in turn: where the L2 is
emptied before each side's turn as it is, where eight times as much is read for that, and where it is not emptied, as
until 30 November 2026. Prints speedups over the fastest baseline, and the hinted kernel's over the plain one's.
"""

import itertools
import statistics
import tempfile

import torch

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.corpus import Family
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.search import prior
from cudal2.target import find
from cudal2.worker.gpu.arena import Arena
from cudal2.worker.worker import Worker

SHAPES = ("8_4096_4096", "4_9216_2304", "16_24576_1536", "16_7584_880", "32_5120_3072", "64_8192_2048")
TARGET, HINT, NONE = "sm_90a", "map_b, tiles_m == 1,", "map_b, false,"
ROUNDS = 2


def sources(shape: str, families: dict[str, Family]) -> dict[str, str]:
    """The best known kernel that may load B so, without the hint and as it is."""
    problem = parse(shape)
    known = prior.liked_settings(TARGET, problem, list(families.values()))
    texts = (corpus.render(families[one.family], one.knobs, problem) for one in known)
    hinted = next(text for text in texts if HINT in text)
    return {"plain": hinted.replace(HINT, NONE), "hinted": hinted}


def main() -> None:
    emptied = Arena.settle

    def often(self: Arena) -> None:
        for _ in range(8):
            emptied(self)

    def waiting(self: Arena) -> None:
        torch.cuda.synchronize()

    ways = {"emptied": emptied, "8 times": often, "as it was": waiting}
    families = {family.name: family for family in corpus.families(find(TARGET))}
    print(f"{'shape':<16} {'the L2 is':<12} {'plain':>7} {'hinted':>7}  ratio, and of every round")
    with (
        tempfile.TemporaryDirectory() as cache,
        Worker(WorkerConfig(protocols=("device",), cache=cache), TARGET) as worker,
    ):
        for shape, what in itertools.product(SHAPES, ways):
            Arena.settle = ways[what]  # type: ignore[method-assign]
            found: dict[str, list[float]] = {"plain": [], "hinted": []}
            for number in range(ROUNDS):
                for kind, source in sources(shape, families).items():
                    text = f"{source}// {what} {number}\n"  # never the same, lest a verdict is remembered
                    verdict = worker.evaluate(Candidate(text, parse(shape), TARGET))
                    assert verdict.timing, verdict.reason
                    found[kind].append(verdict.timing.speedup)
            ratios = [hinted / plain for plain, hinted in zip(found["plain"], found["hinted"])]
            plain, hinted = (statistics.median(those) for those in found.values())
            every = " ".join(f"{ratio:.3f}" for ratio in ratios)
            print(f"{shape:<16} {what:<12} {plain:7.3f} {hinted:7.3f}  {statistics.median(ratios):.3f}: {every}")


if __name__ == "__main__":
    main()
