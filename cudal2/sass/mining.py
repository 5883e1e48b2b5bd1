"""Mines latencies from the compiler's own schedules.

    python -m cudal2.sass.mining KERNEL.cubin … > latencies.json
    python -m cudal2.sass.mining latencies.json OTHER.cubin … > data/sass/latencies.json   # kernels that it is not of

The shipped table is of 320 cubins: `corpus.draw` of seeds 0 to 79 for sm_80, sm_86, sm_89 and sm_90a, no CuTe
kernels, nvcc 13.0 (tests/sass/cubins.py has the seeds); and of the 22 kernels of the family `decode`,
which came later, among the seeds 0 to 999 for sm_90a. Distances along slow paths (through a wait, a branch, a barrier)
count as well: on sm_90a, wherever straight paths were seen too, the least of both was the same, with one
exception (UMOV to an integer operation: 6, on straight paths 7).
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec

from cudal2.sass import flow, latencies, opcodes
from cudal2.sass.latencies import Seen, Table
from cudal2.sass.listing import Listing, read
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.cuda.compile.cubin import NO_BARRIER
from cudal2.worker.sandbox import jail


def mined(listings: Iterable[Listing]) -> dict[str, Table]:
    """The table of each architecture with listings."""
    by_architecture = defaultdict[str, list[Listing]](list)
    for listing in listings:
        by_architecture[listing.architecture].append(listing)
    tables = {name: _table(group) for name, group in sorted(by_architecture.items())}
    relatives = [table for name, table in tables.items() if name.startswith("sm_8")]
    return {
        name: msgspec.structs.replace(table, distances=_pooled(table, relatives)) if table in relatives else table
        for name, table in tables.items()
    }


def _pooled(table: Table, relatives: list[Table]) -> dict[str, dict[str, Seen]]:
    """The distances on Ampere and Ada together: the well-known ones are equal, except for matrix instructions."""
    pooled = {first: dict(row) for first, row in table.distances.items()}
    for other in relatives:
        for first, row in other.distances.items():
            for later, seen in row.items() if "MMA" not in first else ():
                mine = pooled.setdefault(first, {}).get(later)
                if mine is None or seen.cycles < mine.cycles:
                    pooled[first][later] = seen
    return pooled


def _table(listings: list[Listing]) -> Table:
    unknown, operations = set[str](), set[str]()
    for listing in listings:
        for instruction in listing.instructions:
            operations.add(instruction.operation)
            if {instruction.controls.write_barrier, instruction.controls.read_barrier} != {NO_BARRIER}:
                unknown.add(instruction.operation)
    unknown -= opcodes.TIMED
    seen = defaultdict[tuple[str, str], Counter[int]](Counter)
    for listing in listings:
        least = dict[tuple[str, str], int]()
        for _, met in flow.meetings(listing, frozenset(unknown)):
            if met.cycles is not None and met.kind != "arm":
                earlier, later = latencies.names(met)
                key = (f"{met.kind} {earlier}", later)
                least[key] = min(met.cycles, least.get(key, met.cycles))
        for key, cycles in least.items():
            seen[key][cycles] += 1
    distances = defaultdict[str, dict[str, Seen]](dict)
    for (first, later), counts in sorted(seen.items()):
        cycles = min(counts)
        distances[first][later] = Seen(cycles, counts[cycles], counts.total())
    return Table(frozenset(unknown), frozenset(operations), dict(distances))


def added(tables: dict[str, Table], more: dict[str, Table]) -> dict[str, Table]:
    """The table of the kernels of both; no kernel may be in both."""
    both = dict(tables)
    for name, table in more.items():
        old = both.get(name, Table(frozenset(), frozenset(), {}))
        distances = {first: dict(row) for first, row in old.distances.items()}
        for first, row in table.distances.items():
            for later, seen in row.items():
                before = distances.setdefault(first, {}).get(later)
                distances[first][later] = _together(before, seen) if before else seen
        both[name] = Table(old.unknown | table.unknown, old.operations | table.operations, distances)
    return both


def _together(first: Seen, second: Seen) -> Seen:
    cycles = min(first.cycles, second.cycles)
    return Seen(cycles, sum(seen.least for seen in (first, second) if seen.cycles == cycles), first.all + second.all)


def written(tables: dict[str, Table]) -> str:
    """The tables as JSON, with one line for each earlier operation."""
    lines = []
    for name, table in sorted(tables.items()):
        rows = sorted(msgspec.to_builtins(table.distances).items())
        lines += [
            f' "{name}": {{"unknown": {json.dumps(sorted(table.unknown))},',
            f'  "operations": {json.dumps(sorted(table.operations))},',
            '  "distances": {',
            ",\n".join(f'   "{first}": {json.dumps(row)}' for first, row in rows),
            "  }}" + "," * (name != max(tables)),
        ]
    return "\n".join(["{", *lines, "}", ""])


def kernels(code: bytes) -> list[str]:
    """The names of the kernels in a cubin."""
    with cubin.open_elf(code) as file:
        return [s.name.removeprefix(cubin.CODE) for s in file.iter_sections() if s.name.startswith(cubin.CODE)]


def _main(files: list[str]) -> None:
    kind = jail.choose("auto")
    begun = [file for file in files if file.endswith(".json")]
    codes = [Path(file).read_bytes() for file in files if file not in begun]
    tables = mined(read(code, kernel, kind) for code in codes for kernel in kernels(code))
    for file in begun:
        tables = added(msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Table]), tables)
    sys.stdout.write(written(tables))


if __name__ == "__main__":
    _main(sys.argv[1:])
