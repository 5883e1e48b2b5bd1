"""The mutation score of the checker: of the faults planted into many kernels, how many does it flag?

    PYTHONPATH=tests python experiments/sass/mutants.py --jobs 2 > mutants.txt   # no GPU; some minutes

Kernels of all mma.sync families at random settings for each architecture (walks.draw), in each at most EACH faults of
a kind. What changes nothing that matters is no fault and not counted; tests/sass/mutation.py says by which rule. Where
a wait or a barrier is gone, that these fields have changed is enough for the checker; `by flow` says how often the flow
of data alone tells.
"""

import argparse
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import walks
from sass import mutation
from sass.mutation import Mutant, Mutants

from cudal2.records import Edit, Status
from cudal2.sass.dependence import Violation, violations
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Listing, read
from cudal2.sass.mining import kernels
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build
from cudal2.worker.sandbox import jail

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90a")
Key = tuple[str, str, str]
"""A target, a kind of fault, and what is counted."""


def listings(target: str, number: int, cache: str) -> list[Listing]:
    """All kernels of the source of that number; none where it does not compile."""
    kind, sample = jail.choose("auto"), walks.draw(number, target)[0]
    made = build.build(sample.source, find(target), Cache(Path(cache)), kind, 120)
    return [read(made.cubin, name, kind) for name in kernels(made.cubin)] if made.status is Status.OK else []


def counted(drawn: tuple[str, int], each: int, cache: str) -> Counter[Key]:
    """For each kind of fault in the kernels of a source: planted, needless, flagged, by flow; where one was missed."""
    target, number = drawn
    found = Counter[Key]()
    for listing in listings(target, number, cache):
        found[target, "", "kernels"] += 1
        rng, those = random.Random(f"mutants {target} {number} {listing.kernel}"), Mutants(listing)
        every = list(those)
        for kind in mutation.KINDS:
            some = [mutant for mutant in every if mutant.kind == kind]
            for mutant in rng.sample(some, min(each, len(some))):
                found[target, kind, "planted"] += 1
                if those.needless(mutant):
                    found[target, kind, "needless"] += 1
                    continue
                said = flags(listing, mutant)
                found[target, kind, "flagged"] += bool(said)
                found[target, kind, "flow"] += any(one.rule != "fields" for one in said)
                if not said:
                    found[target, kind, f"missed: source {number}, {listing.kernel[:40]}, {mutant}"] += 1
    return found


def flags(listing: Listing, mutant: Mutant) -> tuple[Violation, ...]:
    """What the checker says of a mutant."""
    return violations(replayed(listing, Edit(listing.kernel, "", mutant.moves)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=12, help="for each architecture, the six families in turn")
    parser.add_argument("--each", type=int, default=25, help="faults of a kind in a kernel, at most")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", default="~/.cache/cudal2")
    arguments = parser.parse_args()
    cache = str(Path(arguments.cache).expanduser())
    total = Counter[Key]()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        one = partial(counted, each=arguments.each, cache=cache)
        for found in pool.map(one, product(TARGETS, range(arguments.sources))):
            total += found
    count = {target: total[target, "", "kernels"] for target in TARGETS}
    print(f"kernels: {', '.join(f'{number} for {target}' for target, number in count.items())}\n")
    print(f"{'':<8} {'':<22} {'planted':>8} {'needless':>8} {'faults':>7} {'flagged':>8} {'score':>7} {'by flow':>8}")
    for target in (*TARGETS, "all"):
        for kind in (*mutation.KINDS, "all"):
            print(line(total, target, kind))
    for (target, kind, what), _ in sorted(total.items()):
        if what.startswith("missed"):
            print(f"{target} {kind} {what}")


def line(total: Counter[Key], target: str, kind: str) -> str:
    """A row of the table."""

    def sum_of(what: str) -> int:
        targets, kinds = TARGETS if target == "all" else (target,), mutation.KINDS if kind == "all" else (kind,)
        return sum(total[key] for key in product(targets, kinds, (what,)))

    planted, needless, flagged, flow = map(sum_of, ("planted", "needless", "flagged", "flow"))
    faults = planted - needless
    shares = f"{flagged / max(faults, 1):>7.2%} {flow / max(faults, 1):>8.1%}"
    return f"{target:<8} {kind:<22} {planted:>8} {needless:>8} {faults:>7} {flagged:>8} {shares}"


if __name__ == "__main__":
    main()
