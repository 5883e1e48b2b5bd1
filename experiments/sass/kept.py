"""Who takes the place of an operand that an instruction keeps (`reuse`)? What ptxas takes for granted about that.

    python experiments/sass/kept.py CUBIN …      # nvdisasm, no GPU; half a second of a core a cubin

For every register kept, what the next instruction that reads into its place (`cudal2.sass.reuse`) does: it reads the
register `again`, or `another`; or there is none before the block ends. If ptxas counts with these places, it keeps
what is read again. Other assumptions stand beside: one place for all instructions, for loads and stores too, or for
registers of even and odd number together. A register `overwritten` before that would be a fault of ptxas, or of the
assumption.
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from cudal2.sass import opcodes, reuse
from cudal2.sass.blocks import graph
from cudal2.sass.listing import Instruction, Listing, read
from cudal2.sass.mining import kernels
from cudal2.worker.sandbox import jail

ASSUMED = ("as the checker", "matrix and others share", "even and odd share", "loads and stores count", "all of these")


def takes(assumed: str, one: Instruction, slot: int, register: str, later: Instruction) -> bool:
    """Whether, by an assumption, an instruction reads into the place where an earlier one keeps a register."""
    shares, banks, memory = (assumed in (name, ASSUMED[-1]) for name in ASSUMED[1:-1])
    those = reuse.operand(later, slot)
    if not memory and later.operation not in opcodes.KEEPING:
        return False
    if not shares and (one.operation in opcodes.MATRIX) != (later.operation in opcodes.MATRIX):
        return False
    return bool(those) if banks else any((int(name[1:]) - int(register[1:])) % reuse.BANKS == 0 for name in those)


def fate(assumed: str, listing: Listing, position: int, slot: int, register: str, stop: int) -> str:
    """What becomes of a kept register."""
    one = listing.instructions[position]
    for later in listing.instructions[position + 1 : stop]:
        if takes(assumed, one, slot, register, later):
            return "again" if register in reuse.operand(later, slot) else "another"
        if register in later.defines:
            return "overwritten"
    return "the block ends"


def count(path: str) -> Counter[tuple[str, str, str]]:
    code, found = Path(path).read_bytes(), Counter[tuple[str, str, str]]()
    for kernel in kernels(code):
        listing = read(code, kernel, jail.choose("auto"))
        for block in graph(listing)[0]:
            for position in range(block.start, block.stop):
                one = listing.instructions[position]
                kind = "matrix" if one.operation in opcodes.MATRIX else "other"
                for slot, register in reuse.kept(one):
                    for assumed in ASSUMED:
                        found[assumed, kind, fate(assumed, listing, position, slot, register, block.stop)] += 1
    return found


def main() -> None:
    with ProcessPoolExecutor() as pool:
        counts = Counter(chain.from_iterable(one.elements() for one in pool.map(count, sys.argv[1:])))
    fates = ("again", "another", "overwritten", "the block ends")
    print(f"{len(sys.argv) - 1} cubins; registers that instructions keep, by what becomes of them\n")
    print(f"{'':<26}{'':<8}" + "".join(f"{name:>16}" for name in fates))
    for assumed in ASSUMED:
        for kind in ("matrix", "other"):
            print(f"{assumed:<26}{kind:<8}" + "".join(f"{counts[assumed, kind, name]:>16}" for name in fates))


if __name__ == "__main__":
    main()
