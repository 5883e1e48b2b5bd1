"""Legal random schedules of many kernels, and planted faults, for fuzz.py: made on any machine with nvcc and nvdisasm.

    PYTHONPATH=tests python experiments/sass/walks.py --kernels 24 --schedules 84 --jobs 2 -o walks.json

Every mma.sync family of data/families in turn, at random settings, compiled for sm_90a. A walk swaps neighbours that
the checker lets change places, wherever in the kernel; schedules are its beginnings of 10 to 300 swaps. Each is held to
every rule again (`legality`). Faults are planted where a loop runs, and say whether the checker finds them.
"""

import argparse
import random
from concurrent.futures import Future, ProcessPoolExecutor
from copy import copy
from pathlib import Path

import msgspec
from sass import mutation
from sass.mutation import Mutants

from cudal2 import corpus
from cudal2.problem import Problem, parse
from cudal2.records import Control, Edit, Shift, Status, digest
from cudal2.sass import flow, latencies
from cudal2.sass.dependence import Checker, violations
from cudal2.sass.legality import replayed
from cudal2.sass.listing import Listing, read
from cudal2.sass.mining import kernels
from cudal2.target import find
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.compile import build, cubin
from cudal2.worker.sandbox import jail

TARGET = "sm_90a"
FAMILIES = ("multistage", "skinny", "small", "splitk", "streamk", "wmma")
SIZES = ("512_512_512", "1024_512_768", "256_1024_2048", "768_640_576")
LONGEST, SHORTEST, CUTS = 300, 10, 12
"""Swaps of a walk, of its shortest beginning, and how many of its beginnings are schedules."""
LOOKED = 80
"""Swaps in a loop that are looked at for such as break one rule alone."""

Move = Shift | Control


class Fault(msgspec.Struct, frozen=True):
    """Moves that break a rule: `kind` was planted, `found` is what the checker says (empty where it finds nothing)."""

    kind: str
    moves: tuple[Move, ...]
    found: str


class Kernel(msgspec.Struct, frozen=True):
    """A source, the kernel of it that is edited, walks with the lengths of their beginnings, and faults."""

    family: str
    layout: str
    size: str
    source: str
    kernel: str
    sha256: str
    instructions: int
    walks: tuple[tuple[Move, ...], ...]
    cuts: tuple[tuple[int, ...], ...]
    """For each walk after how many moves its schedules end."""
    faults: tuple[Fault, ...]

    @property
    def problem(self) -> Problem:
        return parse(self.size, self.layout, "f32")  # type: ignore[arg-type]

    def edits(self) -> list[Edit]:
        """The legal schedules."""
        ends = [(walk, cut) for walk, cuts in zip(self.walks, self.cuts) for cut in cuts]
        return [Edit(self.kernel, self.sha256, walk[:cut]) for walk, cut in ends]


def draw(number: int, name: str = TARGET) -> tuple[corpus.Sample, str]:
    """The kernel of that number for a target, a family in turn, and the size it is run at."""
    rng, target = random.Random(f"walks {number}"), find(name)
    family = next(one for one in corpus.families(target) if one.name == FAMILIES[number % len(FAMILIES)])
    layout = rng.choice(family.layouts)
    knobs = corpus.allowed(family, layout, "f32", rng)
    assert knobs is not None
    return corpus.Sample(family.name, layout, knobs, corpus.render(family, knobs, layout)), rng.choice(SIZES)


def make(number: int, schedules: int, cache: str) -> Kernel | None:
    """The kernel of that number with its walks; None where it does not compile."""
    sample, size = draw(number)
    return walked(sample.family, sample.layout, size, sample.source, schedules, cache)


def walked(family: str, layout: str, size: str, source: str, schedules: int, cache: str) -> Kernel | None:
    """Walks and faults of the longest kernel of a source; None where it does not compile."""
    kind = jail.choose("auto")
    made = build.build(source, find(TARGET), Cache(Path(cache)), kind, 120)
    if made.status is not Status.OK:
        return None
    name = max(kernels(made.cubin), key=lambda one: cubin.code_of(made.cubin, one)[1])
    listing, rng = read(made.cubin, name, kind), random.Random(source)
    sha256 = cubin.made_for(made.cubin, name).sha256
    walks, cuts = [], []
    while sum(map(len, cuts)) < schedules:
        walk, ends = wander(listing, rng)
        for end in ends:
            broken = violations(replayed(listing, Edit(name, sha256, walk[:end])))
            assert not broken, broken
        walks.append(walk)
        cuts.append(ends)
    return Kernel(
        family,
        layout,
        size,
        source,
        name,
        sha256,
        len(listing.instructions),
        tuple(walks),
        tuple(cuts),
        tuple(faults(listing, rng)),
    )


def planted_anew(kernel: Kernel, each: int, cache: str) -> Kernel:
    """The same walks, with other faults."""
    kind = jail.choose("auto")
    made = build.build(kernel.source, find(TARGET), Cache(Path(cache)), kind, 120)
    listing = read(made.cubin, kernel.kernel, kind)
    return msgspec.structs.replace(kernel, faults=tuple(faults(listing, random.Random(kernel.source), each)))


def again(kernel: Kernel, cache: str) -> Kernel:
    """The kernel with other walks in place of those that break a rule of today's, and other faults; the rest stays."""
    kind, rng = jail.choose("auto"), random.Random(f"again {kernel.source}")
    made = build.build(kernel.source, find(TARGET), Cache(Path(cache)), kind, 120)
    listing = read(made.cubin, kernel.kernel, kind)
    checker, walks = Checker(listing), list[tuple[tuple[Move, ...], tuple[int, ...]]]()
    for walk, ends in zip(kernel.walks, kernel.cuts):
        while any(violations(replayed(listing, Edit(kernel.kernel, "", walk[:end])), checker) for end in ends):
            walk, ends = wander(listing, rng)
        walks.append((walk, ends))
    moves, cuts = zip(*walks)
    return msgspec.structs.replace(kernel, walks=moves, cuts=cuts, faults=tuple(faults(listing, rng)))


def wander(
    listing: Listing, rng: random.Random, wanted: tuple[int, ...] = ()
) -> tuple[tuple[Move, ...], tuple[int, ...]]:
    """A walk of legal swaps, and after how many moves each of its beginnings of `wanted` swaps ends; without `wanted`
    some are drawn, up to LONGEST."""
    wanted = wanted or (*sorted(rng.sample(range(SHORTEST, LONGEST), CUTS - 1)), LONGEST)
    moves: list[Move] = []
    ends, checker, count = [], Checker(listing), len(listing.instructions)
    for swaps in range(1, wanted[-1] + 1):
        position = rng.randrange(count - 1)
        while checker.may_swap(position):
            position = rng.randrange(count - 1)
        checker, more = step(checker, position)
        moves += more
        if swaps in wanted:
            ends.append(len(moves))
    return tuple(moves), tuple(ends)


def step(checker: Checker, position: int) -> tuple[Checker, tuple[Move, ...]]:
    """The checker after a swap; made anew only where the block leaves something else under way at its end."""
    listing, moves = checker.swap(position)
    block = checker.block(position)
    nodes = [node for node in checker._begins if checker.blocks[node[0]] == block]
    before = {node: flow.left(checker._along(node, checker._begins[node])[-1]) for node in nodes}
    new = copy(checker)
    new.listing, new._states = listing, {node: those for node, those in checker._states.items() if node not in nodes}
    same = all(flow.left(new._along(node, new._begins[node])[-1]) == before[node] for node in nodes)
    return new if same else Checker(listing), moves


def loops(listing: Listing) -> set[int]:
    """Positions inside the innermost loops that multiply."""
    those = listing.instructions
    spans = [(one.target, place) for place, one in enumerate(those) if one.target is not None and one.target < place]
    spans = [span for span in spans if any(one.operation == "HMMA" for one in those[span[0] : span[1]])]
    inner = [s for s in spans if not any(s != o and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return {place for start, stop in inner for place in range(start, stop)}


def faults(listing: Listing, rng: random.Random, each: int = 1) -> list[Fault]:
    """Planted faults, `each` of a kind, and swaps that break one rule alone, `each` of a rule."""
    those, checker = listing.instructions, Checker(listing)
    inside = loops(listing) or set(range(len(those)))
    starts = {block.start for block in checker.blocks}
    pairs = [p for p in sorted(inside) if p + 1 < len(those) and p + 1 not in starts]
    mutants = Mutants(listing)
    planted = [one for one in mutants if one.position in inside and not mutants.needless(one)]
    found = []
    for kind in mutation.KINDS:
        some = [mutant for mutant in planted if mutant.kind == kind]
        for mutant in rng.sample(some, min(each, len(some))):
            found.append(_fault(listing, kind, mutant.moves))
    heads = [p for p in range(len(those) - 1) if {p, p + 1} & inside and p + 1 in starts and not _pinned(checker, p)]
    for place in rng.sample(heads, min(each, len(heads))):
        found.append(_fault(listing, "rule: block", (Shift(place, place + 1),)))
    return found + _single(listing, checker, pairs, rng, each)


def _pinned(checker: Checker, place: int) -> bool:
    """Whether one of two neighbours never moves at all."""
    those = checker.listing.instructions
    return any(latencies.pinned(those[p], those[p - 1] if p else None, checker.table) for p in (place, place + 1))


def _single(listing: Listing, checker: Checker, inside: list[int], rng: random.Random, each: int) -> list[Fault]:
    """Swaps in a loop that one kind of rule alone forbids."""
    wanted: dict[str, list[Fault]] = {}
    for place in rng.sample(inside, min(LOOKED, len(inside))):
        why = checker.may_swap(place)
        if not why or "pinned" in why or "no two" in why:
            if kept := [] if why else checker.swap(place)[1][:-1]:  # legal but for operands that are kept around it
                fault = _fault(listing, "rule: reuse", (Shift(place, place + 1),))
                if fault.found and kept and len(wanted.setdefault("reuse", [])) < each:
                    wanted["reuse"].append(fault)
            continue
        moves = (*checker.swap(place)[1],)
        broken = violations(replayed(listing, Edit(listing.kernel, "", moves)))
        rules = {_rule(one.rule, one.why) for one in broken}
        if len(rules) == 1 and len(wanted.setdefault(min(rules), [])) < each:
            wanted[min(rules)].append(Fault(f"rule: {min(rules)}", moves, f"{broken[0].rule}: {broken[0].why}"))
    return [fault for _, those in sorted(wanted.items()) for fault in those]


def _rule(rule: str, why: str) -> str:
    if rule in ("raw", "waw", "war"):
        return f"{rule}, barrier" if "no barrier" in why else f"{rule}, cycles"
    return "order, memory" if "memory" in why else "order, bundle" if "bundle" in why else rule


def _fault(listing: Listing, kind: str, moves: tuple[Move, ...]) -> Fault:
    broken = violations(replayed(listing, Edit(listing.kernel, "", moves)))
    return Fault(kind, moves, f"{broken[0].rule}: {broken[0].why}" if broken else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="the number of the first; a number is always one kernel")
    parser.add_argument("--schedules", type=int, default=84, help="of each kernel, at least")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", default="~/.cache/cudal2")
    parser.add_argument("--faults", type=Path, help="a file of walks that other faults are planted for, EACH of a kind")
    parser.add_argument("--again", type=Path, help="a file of walks: those illegal by now are replaced")
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    cache = str(Path(arguments.cache).expanduser())
    with ProcessPoolExecutor(arguments.jobs) as pool:
        pending: list[Future[Kernel | None]] = []
        if arguments.again:
            known = msgspec.json.decode(arguments.again.read_bytes(), type=list[Kernel])
            pending = [pool.submit(again, kernel, cache) for kernel in known]
        elif arguments.faults:
            known = msgspec.json.decode(arguments.faults.read_bytes(), type=list[Kernel])
            pending = [pool.submit(planted_anew, kernel, arguments.each, cache) for kernel in known]
        else:
            pending = [
                pool.submit(make, arguments.first + number, arguments.schedules, cache)
                for number in range(arguments.kernels)
            ]
        done: list[Kernel] = []
        for future in pending:
            if (kernel := future.result()) is not None:
                done.append(kernel)
                print(kernel.family, kernel.size, kernel.layout, kernel.instructions, len(kernel.edits()), flush=True)
                arguments.output.write_bytes(msgspec.json.encode(done))
    print(f"{len(done)} kernels, {sum(len(one.edits()) for one in done)} schedules, {digest(str(done))[:12]}")


if __name__ == "__main__":
    main()
