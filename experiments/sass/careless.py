"""Walks of a checker that lacks one rule, for fuzz.py: which missing rule gives NaN, and how seldom does it show?

    python experiments/sass/careless.py --jobs 2 -o careless.json    # nvcc and nvdisasm, no GPU; a quarter of an hour
    python experiments/sass/fuzz.py careless.json -o fuzz.json       # on a GPU; the table of faults has a line per rule

Kernels of 128 threads, as the one of the first trial had, where 2 of 24 schedules, of 62 and 210 swaps, gave NaN.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import walks

from cudal2.sass import dependence, flow, latencies, listing, reuse
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, cubin
from cudal2.worker.sandbox import jail

KERNELS = (39, 40, 0, 2)
"""Numbers of kernels of four warps (`walks.draw`): splitk with a matrix instruction behind a BAR, streamk with six P2R,
multistage, and small."""
CUTS = (62, 210)
"""Swaps of a schedule."""
WALKS = 4


def ignored(what: Callable[[flow.Meeting], bool]) -> Callable[[], object]:
    """A checker that does not mind such meetings."""
    broken = dependence.Checker.broken

    def lenient(self: dependence.Checker, met: flow.Meeting, strictly: bool = False) -> str:
        return "" if what(met) else broken(self, met, strictly)

    return lambda: mock.patch.object(dependence.Checker, "broken", lenient)


def addend(met: flow.Meeting) -> bool:
    """The lower half of the addend of an integer product, late enough for the upper one."""
    product = met.kind == "raw" and met.later.operation == "IMAD" and "/c" in latencies.names(met)[1]
    return product and met.cycles in (2, 3)


def told_by_bar() -> object:
    """What stands in front of a BAR or MEMBAR has read its sources."""
    step = flow.step

    def trusting(state: flow.State, one: listing.Instruction, unknown: frozenset[str]) -> list[flow.Meeting]:
        met = step(state, one, unknown)
        if one.operation in ("BAR", "MEMBAR"):
            state.reading.clear()
        return met

    return mock.patch.object(flow, "step", trusting)


def timed(kind: str) -> Callable[[], object]:
    return ignored(lambda met: met.kind == kind and met.cycles is not None)


def awaited(kind: str) -> Callable[[], object]:
    return ignored(lambda met: met.kind == kind and met.cycles is None)


RULES: dict[str, Callable[[], object]] = {
    "memory behind a BAR": timed("sync"),
    "predicates of a P2R": lambda: mock.patch.object(listing, "_masked", lambda operands: {}),
    "addend of a product": ignored(addend),
    "sources behind a BAR": told_by_bar,
    "raw, cycles": timed("raw"),
    "raw, barrier": awaited("raw"),
    "waw, cycles": timed("waw"),
    "war, cycles": timed("war"),
    "war, barrier": awaited("war"),
    "a barrier that counts": timed("arm"),
    "memory": lambda: mock.patch.object(latencies, "_memory", lambda first, second: ""),
    "copies and empty loads": lambda: mock.patch.object(latencies, "dummy", lambda one: False),
    "operands kept": lambda: mock.patch.object(reuse, "wrong", lambda *those: ""),
}
"""By name: takes the rule out of the checker."""


@contextmanager
def without(rule: str) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(RULES[rule]())  # type: ignore[arg-type]
        yield


def make(number: int, cache: str) -> walks.Kernel:
    """The kernel of that number: one legal walk, and for each rule the walks of a checker without it."""
    sample, size = walks.draw(number)
    kind = jail.choose("auto")
    made = build.build(sample.source, find(walks.TARGET), Cache(Path(cache)), kind, 120)
    name = max(walks.kernels(made.cubin), key=lambda one: cubin.code_of(made.cubin, one)[1])
    rng = random.Random(f"careless {number}")
    compiled = listing.read(made.cubin, name, kind)
    legal = walks.wander(compiled, rng)
    faults = []
    for rule in RULES:
        for _ in range(WALKS):
            with without(rule):
                moves, ends = walks.wander(listing.read(made.cubin, name, kind), rng, CUTS)
            faults += [walks._fault(compiled, f"{rule}, {cut:>3}", moves[:end]) for cut, end in zip(CUTS, ends)]
        print(number, rule, sum(bool(fault.found) for fault in faults[-2 * WALKS :]), "of", 2 * WALKS, flush=True)
    return walks.Kernel(
        sample.family, sample.layout, size, sample.source, name, cubin.made_for(made.cubin, name).sha256,
        len(compiled.instructions), (legal[0],), (tuple(legal[1]),), tuple(faults),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", default="~/.cache/cudal2")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    cache = str(Path(arguments.cache).expanduser())
    with ProcessPoolExecutor(arguments.jobs) as pool:
        done = list(pool.map(make, KERNELS, [cache] * len(KERNELS)))
    arguments.output.write_bytes(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
