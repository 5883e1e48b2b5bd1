"""What a wave that is half empty costs: the campaign's kernels of the family `warp_specialised`, by how much they fill.

    python experiments/h200/campaign/waves.py RUN

Each such kernel computes whole tiles of C, one on each multiprocessor at a time, so 192 tiles take as long as 264.
Prints the speedup over the fastest baseline by the share of the multiprocessors' time that is used, for products from
3·10⁹ FLOP on; and of the pairs of kernels of one shape whose shares differ by more than 0.1, how often the fuller one
is faster.
"""

import sys
from collections import defaultdict
from itertools import permutations
from pathlib import Path
from statistics import geometric_mean

import msgspec

from cudal2 import corpus
from cudal2.archive.store import Archive
from cudal2.corpus import Knobs
from cudal2.search.prior import MULTIPROCESSORS, filled
from cudal2.search.proposer import Setting
from cudal2.target import find

TARGET, FAMILY, LEAST = "sm_90a", "warp_specialised", 3e9


def knobs(source: str, prompt: str) -> Knobs | None:
    """Those of a kernel of the family: as the policy states them, or as evolution's prompt has them."""
    if prompt.startswith("{"):
        setting = msgspec.json.decode(prompt, type=Setting)
        return setting.knobs if setting.family == FAMILY else None
    stated = corpus.stated(source, find(TARGET))
    return stated[1] if stated and stated[0] == FAMILY else None


def main(folder: Path) -> None:
    [family] = [one for one in corpus.families(find(TARGET)) if one.name == FAMILY]
    shapes = defaultdict(set)
    with Archive.of(folder, create=False) as archive:
        for sample in archive.samples("search"):
            if not sample.speedup or sample.problem.flop < LEAST:
                continue
            if found := knobs(archive.source(sample.source_hash), sample.origin.prompt):
                share = filled(sample.problem, family, found, MULTIPROCESSORS[TARGET])
                shapes[sample.problem].add((share, sample.speedup))
    tenths = defaultdict(list)
    for share, speedup in (one for found in shapes.values() for one in found):
        tenths[min(int(10 * share), 9)].append(speedup)
    print("share used  kernels  speedup")
    for tenth, speedups in sorted(tenths.items()):
        print(f"{tenth / 10:.1f}–{(tenth + 1) / 10:.1f}     {len(speedups):7d}    {geometric_mean(speedups):.3f}")
    pairs = [(a[1], b[1]) for found in shapes.values() for a, b in permutations(found, 2) if a[0] > b[0] + 0.1]
    print(f"of {len(pairs)} pairs the fuller one is the faster one in {sum(one > other for one, other in pairs)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
