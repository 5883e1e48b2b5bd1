"""What does ptxas take for over, or read, that nobody has waited for? How many compiled kernels need each such thing.

    python experiments/sass/permitted.py CUBIN … > permitted.txt     # nvdisasm, no GPU; half a second of a core a cubin

Follows results and sources of memory instructions, conversions and the like along all paths, and takes for granted all
that could be true: that what goes through one pipe ends, and is read, in the order of issue; that predicates and
uniform registers are read at issue; that a DEPBAR tells of the barriers that it names. A kernel needs one of these
where something overwrites, or uses, what only that one tells to be over. Marked are those that the checker does not
permit there (`opcodes.Order`); a kernel that needs one of them would be blamed.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from cudal2.sass import latencies, opcodes
from cudal2.sass.blocks import graph
from cudal2.sass.listing import Instruction, Listing, read
from cudal2.sass.mining import kernels
from cudal2.worker.cuda.compile.cubin import BARRIERS
from cudal2.worker.sandbox import jail

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a")
PIPES = ("LDL LDS LDSM MOVM SHFL STG STL STS STSM", "F2F F2I FLO FRND I2F MUFU POPC", "LDGSTS LDL")
"""Operations that might go through one unit in order."""
Need = tuple[str, str, str]
"""What is granted, the earlier operation, and the later one where there is any."""
Place = tuple[str, str, int]
"""`told` for a result or `read` for a source; its register; and whose it is, by the origin."""


class Open(NamedTuple):
    """A result or source that may be under way: barriers that tell by themselves, those that tell if something is
    granted, and, once such ones were waited for, what they were (one has to be true): it is `over` then."""

    one: Instruction
    own: frozenset[int]
    others: frozenset[tuple[int, Need]] = frozenset()
    granted: frozenset[Need] = frozenset()
    over: bool = False


def one_pipe(earlier: str, later: str) -> bool:
    return earlier == later or any({earlier, later} <= set(pipe.split()) for pipe in PIPES)


def step(under: dict[Place, Open], one: Instruction, unknown: frozenset[str], needs: Counter[frozenset[Need]]) -> None:
    """Issue an instruction: counts what has to be granted for it, and changes what is under way."""
    waits = set(one.controls.waits)
    drained = {barrier for barrier in range(BARRIERS) if opcodes.drained(one) >> barrier & 1} - waits
    for place, entry in list(under.items()):
        told = frozenset(need for barrier, need in entry.others if barrier in waits)
        if not told and (entry.own | {barrier for barrier, _ in entry.others}) & drained:
            told = frozenset({("DEPBAR", entry.one.operation, "")})
        if entry.own & waits:
            del under[place]
        elif told:
            under[place] = entry._replace(granted=entry.granted | told, over=True)
    variable = one.operation in unknown
    for (kind, register, _), entry in under.items():
        if register in one.defines or (kind == "told" and register in one.uses):
            first, granted = entry.one.operation, entry.granted
            file = "P" if "P" in register else register.rstrip("0123456789")
            if kind == "read" and file != "R":
                granted |= {("at once", first, file)}
            elif not entry.over and kind == "read":
                granted |= {("before" if one_pipe(first, one.operation) else "nothing", first, one.operation)}
            elif not entry.over:
                anew = variable and register in one.defines and one_pipe(first, one.operation)
                granted |= {("anew" if anew else "nothing", first, one.operation)}
            needs[granted] += bool(granted)
    for register in one.defines:
        for place in [place for place in under if place[1] == register and not one.guard]:
            del under[place]
    if variable:
        _issue(under, one)


def _issue(under: dict[Place, Open], one: Instruction) -> None:
    ends = {one.controls.write_barrier} & set(range(BARRIERS))
    reads = {one.controls.read_barrier} & set(range(BARRIERS))
    for place, entry in under.items():
        if one_pipe(entry.one.operation, one.operation):
            told = ends if place[0] == "told" else ends | reads
            more = {(barrier, (place[0], entry.one.operation, one.operation)) for barrier in told}
            under[place] = entry._replace(others=entry.others | more)
    for register in one.defines:
        under["told", register, one.origin] = Open(one, frozenset(ends))
    for register in one.uses:
        # A result that is there was made of sources that were read.
        under["read", register, one.origin] = Open(one, frozenset(ends | reads))


def joined(first: dict[Place, Open], second: dict[Place, Open]) -> dict[Place, Open]:
    """What may be under way where two paths meet: what is on either, told by what tells it on both."""
    both = first | second
    for place in first.keys() & second.keys():
        one, other = first[place], second[place]
        known = [entry.own | {barrier for barrier, _ in entry.others} for entry in (one, other)]
        others = frozenset(pair for pair in one.others | other.others if pair[0] in known[0] & known[1])
        both[place] = Open(one.one, one.own & other.own, others, one.granted | other.granted, one.over and other.over)
    return both


def needed(listing: Listing) -> Counter[frozenset[Need]]:
    """What has to be granted for a kernel: sets of which one has to be true."""
    unknown = latencies.table(listing).unknown
    parts, edges = graph(listing)
    at, todo, needs = {(0, None): dict[Place, Open]()}, [(0, None)], Counter[frozenset[Need]]()

    def through(node: tuple[int, int | None], counts: Counter[frozenset[Need]]) -> dict[Place, Open]:
        under = dict(at[node])
        for one in listing.instructions[parts[node[0]].start : parts[node[0]].stop]:
            step(under, one, unknown, counts)
        return under

    while todo:
        node = todo.pop()
        after = through(node, Counter())
        for following in edges(node):
            new = joined(at[following], after) if following in at else after
            if new != at.get(following):
                at[following] = new
                todo += [following] * (following not in todo)
    for node in at:
        through(node, needs)
    return needs


def permitted(need: Need, architecture: str) -> bool:
    kind, first, later = need
    order = opcodes.order(architecture)
    if kind == "at once":
        return first in order.at_once.get(later, ())
    table = {"told": order.told, "read": order.read_told, "before": order.read_before}.get(kind, {})
    return first in table.get(later, ())


def counted(file: str) -> list[tuple[str, frozenset[Need]]]:
    """For each kernel of a cubin its architecture, and what it cannot do without."""
    code, kind = Path(file).read_bytes(), jail.choose("auto")
    listings = (read(code, kernel, kind) for kernel in kernels(code))
    return [(one.architecture, _cannot_miss(needed(one), one.architecture)) for one in listings]


def _cannot_miss(needs: Iterable[frozenset[Need]], architecture: str) -> frozenset[Need]:
    """Of sets of which one has to be true: those alone, and of the others what is permitted, or all."""
    alone = frozenset(chain.from_iterable(those for those in needs if len(those) == 1))
    rest = [those for those in needs if not those & alone]
    chosen = [frozenset(n for n in those if permitted(n, architecture)) or those for those in rest]
    return alone.union(*chosen)


def main(files: list[str]) -> None:
    total, kernel_count = defaultdict[Need, Counter[str]](Counter), Counter[str]()
    with ProcessPoolExecutor(2) as pool:
        for rows in pool.map(counted, files, chunksize=4):
            for architecture, those in rows:
                kernel_count[architecture] += 1
                for need in those:
                    total[need][architecture] += 1
    print(f"{len(files)} cubins\n\n{'':<28}", *(f"{name:>8}" for name in ARCHITECTURES))
    print(f"{'kernels':<28}", *(f"{kernel_count[name]:>8}" for name in ARCHITECTURES))
    for need in sorted(total.keys() | _all()):
        marks = ["" if permitted(need, name) else "-" for name in ARCHITECTURES]
        cells = (f"{mark + str(total[need][name]):>8}" for name, mark in zip(ARCHITECTURES, marks))
        print(f"{' '.join(part for part in need if part):<28}", *cells)


def _all() -> set[Need]:
    """What the checker permits anywhere."""
    found = set[Need]()
    for order in map(opcodes.order, ARCHITECTURES):
        for kind, table in (("told", order.told), ("read", order.read_told), ("before", order.read_before)):
            found |= {(kind, first, later) for later, those in table.items() for first in those}
        found |= {("at once", first, file) for file, those in order.at_once.items() for first in those}
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
