"""Which rule of the checker would a careless one miss? How many swaps of neighbours each rule forbids all by itself.

    python experiments/sass/missing.py walks.json > missing.txt

A walk whose checker lacks a rule takes such a swap, in the mean, after as many swaps as there are free ones for each.
What such swaps do on a GPU is told by fuzz.py ("rule: …").
"""

import sys
from collections import Counter
from pathlib import Path

import msgspec
import walks

from cudal2.sass import flow, latencies, reuse
from cudal2.sass.dependence import Checker
from cudal2.sass.listing import Listing, read
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build
from cudal2.worker.sandbox import jail


def forbidden(checker: Checker, position: int) -> set[str]:
    """The rules that a swap breaks within its block; empty where none is."""
    those, block = checker.listing.instructions, checker.block(position)
    assert block is not None
    if position + 1 >= block.stop:
        if position + 1 == len(those) or those[position].operation in BRANCHES:
            return {"branch", "pinned"}
        return {"block"} | forbidden_order(checker, position, None)
    found = forbidden_order(checker, position, block.start)
    if reuse.wrong(checker.listing.swapped(position), position, block.stop):
        found.add("reuse")
    for met in checker.within(checker.swap(position)[0], block, position):
        if isinstance(met, flow.Meeting) and checker.broken(met, strictly=True):
            found.add(f"{met.kind}, {'barrier' if met.cycles is None else 'cycles'}")
    return found


BRANCHES = frozenset("BRA BRX BSYNC CALL EXIT RET WARPSYNC YIELD".split())


def forbidden_order(checker: Checker, position: int, start: int | None) -> set[str]:
    those = checker.listing.instructions
    first, second = those[position], those[position + 1]
    found = set()
    for place in (position, position + 1):
        before = those[place - 1] if start is None or place > start else None
        if why := latencies.pinned(those[place], before, checker.table):
            found.add("copies and their empty loads" if "bundle" in why else "pinned")
    if why := latencies.conflict(first, second):
        found.add("memory" if "memory" in why else "registers")
    return found


def main() -> None:
    kernels = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[walks.Kernel])
    alone, free, pairs = Counter[str](), 0, 0
    kind, cache = jail.choose("auto"), Cache(Path("~/.cache/cudal2").expanduser())
    for kernel in kernels:
        made = build.build(kernel.source, find(walks.TARGET), cache, kind, 120)
        listing: Listing = read(made.cubin, kernel.kernel, kind)
        checker = Checker(listing)
        for position in range(len(listing.instructions) - 1):
            rules = forbidden(checker, position)
            pairs += 1
            free += not rules
            if len(rules) == 1:
                alone[min(rules)] += 1
    print(f"{len(kernels)} kernels, {pairs} pairs of neighbours, {free} free\n")
    print(f"{'rule':<30} {'alone':>6}  free for each")
    for rule, count in alone.most_common():
        print(f"{rule:<30} {count:>6}  {free / count:>8.1f}")


if __name__ == "__main__":
    main()
