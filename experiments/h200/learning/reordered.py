"""Kernels of a policy that were judged, in the order in which `search.rerank` has had them since.

    cd runs/tiled && python ../../experiments/h200/learning/reordered.py layers+off-lattice four-tiles-0 four-tiles-1

Until 30 November 2026 a text was valued by its plan, whatever kernel followed it, and the first of four was the best of
sixteen texts, whatever the others' were. No kernel is judged here that was not: it says what the first would have been
of those that were. Speedups as in first.py, and less the first kernel of the first folder.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from first import FAILED, interval, searched

from cudal2 import corpus
from cudal2.archive import Archive
from cudal2.problem import Problem, off_lattice
from cudal2.search.proposer import Setting
from cudal2.search.rerank import liked
from cudal2.split import REPORTED
from cudal2.target import find

TARGET = find("sm_90a")


def kernels(folder: str) -> dict[Problem, list[tuple[str, float]]]:
    """Of each shape the sources and their speedups, in the order in which they were judged."""
    found = defaultdict(list)
    with Archive.of(folder, create=False) as archive:
        for sample in archive.samples():
            found[sample.problem].append((archive.source(sample.source_hash), sample.speedup or FAILED))
    return found


def main(beside: str, *folders: str) -> None:
    rivals, off = searched(beside), {problem.mnk for problem in off_lattice(*REPORTED)}
    for folder in folders:
        firsts = dict[Problem, tuple[float, float]]()
        for problem, some in kernels(folder).items():
            kept = [one for one in some if corpus.keeps_its_plan(one[0], TARGET, problem)] or some
            settings = [Setting(*stated) for source, _ in kept if (stated := corpus.stated(source, TARGET))]
            place = liked(TARGET, problem, settings)[0] if len(settings) == len(kept) else 0
            firsts[problem] = np.log(kept[place][1]), np.log(rivals[problem][0][0])
        for what, only in (("all", None), ("layers", False), ("off the lattice", True)):
            ours, theirs = np.array([one for p, one in firsts.items() if only in (None, p.mnk in off)]).T
            print(f"{Path(folder).name:14s} {what:16s} {interval(ours)}, less {interval(ours - theirs, np.array)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
