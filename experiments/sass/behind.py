"""Does the compiler take a BAR or MEMBAR for a sign that memory instructions have read their sources? It never does.

    python experiments/sass/behind.py CUBIN … > behind.txt     # nvdisasm, no GPU; half a second of a core a cubin

Counts sources that a memory instruction may still read when a BAR, MEMBAR or UCGABAR_WAIT issues, and that are
overwritten behind it, in the same block: by an instruction that waits for a barrier that tells of the source, behind
another that did, by one that the reader's own pipe runs in order, or on nobody's word. The last column looks at all
paths, not only at blocks: kernels in which anything would overwrite a source that nothing but those three tells of.
"""

import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cudal2.sass import flow, latencies
from cudal2.sass.listing import Listing, read
from cudal2.sass.mining import kernels
from cudal2.worker.sandbox import jail

THREE = ("BAR", "MEMBAR", "UCGABAR_WAIT")
ITSELF, BEFORE, ORDER, NOBODY = HOW = ("itself", "before it", "in order", "nobody")
Pair = tuple[int, int, str]
"""Who reads, who overwrites (their origins), and the register."""


def pairs(listing: Listing) -> dict[Pair, str]:
    """The overwritten sources of a listing, and how each is known to be read."""
    unknown, found = latencies.table(listing).unknown, dict[Pair, str]()
    parts, at = flow.begins(listing, unknown)
    for (number, _), begin in at.items():
        state, open_, told = begin.copy(), defaultdict[str, set[flow.Awaited]](set), defaultdict[str, set[int]](set)
        for one in listing.instructions[parts[number].start : parts[number].stop]:
            mask, here = one.controls.wait, set[tuple[str, int]]()
            for register, those in open_.items():
                over = {entry for entry in those if entry.mask & mask}
                those -= over
                told[register] |= {entry.one.origin for entry in over}
                here |= {(register, entry.one.origin) for entry in over}
            for register in one.defines:
                for reader in told.pop(register, set()):
                    pair = reader, one.origin, register
                    found.setdefault(pair, ITSELF if (register, reader) in here else BEFORE)
                for entry in open_.pop(register, set()):
                    ordered = entry.operation in state.order.read_before.get(one.operation, ())
                    found.setdefault((entry.one.origin, one.origin, register), ORDER if ordered else NOBODY)
            flow.step(state, one, unknown)
            if one.operation in THREE:
                for register, entries in state.reading.items():
                    open_[register] |= set(entries)
    return found


def counted(file: str) -> list[tuple[str, Counter[str], bool]]:
    """For each kernel of a cubin its architecture, how many sources of each kind, and whether any rests on nobody."""
    code, kind = Path(file).read_bytes(), jail.choose("auto")
    rows = []
    for kernel in kernels(code):
        listing = read(code, kernel, kind)
        meetings = flow.meetings(listing, latencies.table(listing).unknown)
        alone = any(met.kind == "war" and met.cycles is None for _, met in meetings)
        rows.append((listing.architecture, Counter(pairs(listing).values()), alone))
    return rows


def main(files: list[str]) -> None:
    total = defaultdict[str, Counter[str]](Counter)
    with ProcessPoolExecutor(2) as pool:
        for rows in pool.map(counted, files):
            for architecture, how, alone in rows:
                total[architecture] += how
                total[architecture] += Counter(kernels=1, some=int(bool(how)), alone=int(alone))
    total["all"] = sum(total.values(), Counter())
    print(
        f"{len(files)} cubins\n\n{'':<8} {'kernels':>8} {'with some':>10}", *(f"{how:>10}" for how in HOW), " all paths"
    )
    for name, row in total.items():
        counts = [row["kernels"], row["some"], *(row[how] for how in HOW), row["alone"]]
        print(f"{name:<8} {counts[0]:>8}", *(f"{count:>10}" for count in counts[1:]))


if __name__ == "__main__":
    main(sys.argv[1:])
