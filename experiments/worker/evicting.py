"""Does a kernel gain by loads that leave the L2 first (`evict_first`), because the L2 holds inputs before it is timed?

    python experiments/worker/evicting.py > evicting.txt      # on a GPU, about two minutes

Judges a known kernel of each shape, and the same with that hint where it loads B, in turn: where the L2 is emptied
before each side's turn, and where it is not, as until 30 November 2026. Prints speedups over the fastest baseline, and
the hinted kernel's over the plain one's.
"""

import itertools
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from cudal2 import corpus
from cudal2.config import WorkerConfig
from cudal2.problem import parse
from cudal2.records import Candidate
from cudal2.search import prior
from cudal2.worker.gpu.arena import Arena
from cudal2.worker.worker import Worker

sys.path.insert(0, str(Path(__file__).parents[1] / "h200/constants"))
from constants import BY_NAME, FAMILIES, TARGET, edited

SHAPES = (
    *("8_4096_4096", "4_9216_2304", "16_24576_1536", "16_7584_880", "32_5120_3072", "32_16384_3072", "64_8192_2048"),
    *("64_904_11864", "256_5120_5120", "1024_4096_1024"),
)
HINT, ROUNDS = "B: evict first", 2


def sources(shape: str) -> dict[str, str]:
    """The best known kernel that loads B by the copy engine, as it is and hinted."""
    problem = parse(shape)
    known = prior.liked_settings(TARGET, problem, FAMILIES)
    texts = (corpus.render(BY_NAME[one.family], one.knobs, problem) for one in known)
    plain = next(text for text in texts if edited(text, HINT) != text)
    return {"plain": plain, "hinted": edited(plain, HINT)}


def main() -> None:
    def waiting(self: Arena) -> None:
        torch.cuda.synchronize()

    emptied = Arena.settle
    print(f"{'shape':<16} {'the L2 is':<12} {'plain':>7} {'hinted':>7}  ratio, and of every round")
    with (
        tempfile.TemporaryDirectory() as cache,
        Worker(WorkerConfig(protocols=("device",), cache=cache), TARGET) as worker,
    ):
        for shape, (what, settle) in itertools.product(SHAPES, (("emptied", emptied), ("as it was", waiting))):
            Arena.settle = settle  # type: ignore[method-assign]
            found: dict[str, list[float]] = {"plain": [], "hinted": []}
            for number in range(ROUNDS):
                for kind, source in sources(shape).items():
                    text = f"{source}// {what} {number}\n"  # never the same, lest a verdict is remembered
                    verdict = worker.evaluate(Candidate(text, parse(shape), TARGET))
                    if not verdict.timing:
                        print(shape, kind, verdict.status, verdict.reason)
                        continue
                    found[kind].append(verdict.timing.speedup)
            if not all(found.values()):
                continue
            ratios = [hinted / plain for plain, hinted in zip(found["plain"], found["hinted"])]
            plain, hinted = (statistics.median(those) for those in found.values())
            every = " ".join(f"{ratio:.3f}" for ratio in ratios)
            print(
                f"{shape:<16} {what:<12} {plain:7.3f} {hinted:7.3f}  {statistics.median(ratios):.3f}: {every}",
                flush=True,
            )


if __name__ == "__main__":
    main()
