"""Small changes of a kernel's text, by the name of their kind, for the proposer `mutation`.

To add one, add a function to the module of its like, and its name here. `mutate(source, mate, rng)` returns the changed
source, or None where it finds nothing to change; `mate` is another good kernel for the same problem, and the same
arguments must give the same answer. What it returns need not be right, nor compile: the worker finds that out.
"""

import random
from collections.abc import Callable

from cudal2.search.mutations import hints, statements, tiling

Mutate = Callable[[str, str, random.Random], str | None]

KINDS: dict[str, Mutate] = {
    "caching": hints.caching,
    "constants": tiling.constants,
    "crossing": statements.crossing,
    "eviction": hints.eviction,
    "lines": statements.lines,
    "loops": statements.loops,
    "move": statements.move,
    "openmp": hints.openmp,
    "qualifiers": hints.qualifiers,
    "raster": tiling.raster,
    "registers": hints.registers,
    "unroll": statements.unroll,
}
"""All of them. Searches record these names, and what a seed gives depends on their order."""
