"""From how many rows on a kernel of more rows is a good one for them: `cudal2 bench call --neighbours`.

In a model N and K are a layer's, and M, the tokens, is anything. A kernel for M rows gives the product of m < M when
they are copied to where M have room; whether that is faster than torch depends on how far M is, and on where torch's
own time steps. So each kernel that is dispatched is called, as `cost` calls it, with numbers of rows from M - 1 down
to the next smaller kernel of the same N and K: both sides of multiples of 64 (of 8 where M is small), where a tile more
begins. The first number at which it is slower than torch ends that, for `settle` lets the kernel serve from the
smallest one such that it was not slower there and at every larger one. What lies between two numbers that were measured
is taken to be like them.

Memory behind the copied rows holds anything. So no kernel is used like this that lets one row see another: sums of
rows that cancel give a right product, but not beside a NaN; and one that minds a NaN may yet see a large number.
"""

import random
from collections import defaultdict
from pathlib import Path

import msgspec
import torch

from cudal2.calling.cost import Row, as_fast, measured, opened, operands, problem, rewrite, spread
from cudal2.kernels.held import Kernel
from cudal2.kernels.library import Library
from cudal2.records import HarnessFault
from cudal2.runtime import manifest
from cudal2.worker import verify

PARTS = 4
"""Into so many the numbers of rows between two kernels are cut; both sides of each cut are measured."""
STEPS = (64, 8, 1)
"""Multiples at which torch's time may step, from tiles and from aligned rows."""
STRANGE = (torch.nan, 6e4)
"""What rows hold that no other row of the product may show."""


def run(folder: Path, accumulate: str = "f32", count: int = 50) -> list[Row]:
    """For each of at most `count` dispatched kernels of an exported folder, small problems first: a row for each number
    of rows that was measured, from more to fewer, of which the last may be slower than torch. `apart` says whether
    each row of its products depends on one row of A alone.

    Raises ValueError where the folder holds no export or nothing to measure, HarnessFault where its kernels cannot run
    on this machine or cannot be called with fewer rows.
    """
    library = opened(folder, accumulate)
    if not library.pads:
        raise HarnessFault(f"{folder} was exported before kernels served fewer rows", "Export again")
    dispatched = {one.problem for one in manifest.read(folder).kernels if one.dispatch}
    kernels = [one for one in library.kernels if problem(one) in dispatched]
    rows = [row for one in spread(kernels, count) for row in _descent(library, one)]
    if not rows:
        remedy = "`cudal2 bench call --settle` decides which are dispatched"
        raise ValueError(f"{folder} dispatches no kernel of {accumulate} sums with room for fewer rows; {remedy}")
    return rows


def settle(folder: Path, rows: list[Row]) -> int:
    """Let each kernel in `rows` serve from the fewest rows on at which, and at all above, it was as fast as torch.

    What did not serve its calls, and what was not measured, stays as it is. Returns how many kernels serve fewer rows
    than their own then. Raises HarnessFault where the folder cannot be written.
    """
    found = manifest.read(folder)
    descents = defaultdict(list)
    for row in rows:
        descents[row["problem"]].append(row)
    fewest = {name: _fewest(those) for name, those in descents.items() if all(row["served"] for row in those)}
    kernels = tuple(
        msgspec.structs.replace(one, fewest_rows=fewest[one.problem.name]) if one.problem.name in fewest else one
        for one in found.kernels
    )
    rewrite(folder, msgspec.structs.replace(found, kernels=kernels))
    return sum(one.dispatch and one.fewest_rows is not None for one in kernels)


def numbers(below: int, m: int) -> list[int]:
    """Which numbers of rows to measure between two kernels' without their own, from more to fewer."""
    part = (m - below) / PARTS
    step = next(step for step in STEPS if step <= max(part, 1))
    cuts = [round((below + i * part) / step) * step for i in range(PARTS)]
    chosen = {m - 1, *(cut + side for cut in cuts for side in (0, 1))}
    return sorted((rows for rows in chosen if below < rows < m), reverse=True)


def _descent(library: Library, kernel: Kernel) -> list[Row]:
    alike = [one for one in library.kernels if one[1:5] == kernel[1:5]]  # N, K, layout and accumulator
    below = max((one.m for one in alike if one.m < kernel.m), default=0)
    rows: list[Row] = []
    apart = _apart(library, kernel)
    for count in numbers(below, kernel.m):
        rows.append(measured(library, kernel, count) | {"apart": apart})
        if not (rows[-1]["served"] and _good(rows[-1])):
            break
    return rows


def _apart(library: Library, kernel: Kernel) -> bool:
    """Whether strange rows of A, about half of them or all behind one, show in their own rows of the product alone."""
    a, b = operands(library, kernel, kernel.m)
    b = b.t() if kernel.layout == "tn" else b.t().contiguous()
    rows = torch.arange(kernel.m, device=a.device)
    loss = verify.loss_bound(problem(kernel), 1)
    with torch.no_grad():
        usual = library.matmul(a, b)
        for value in STRANGE:
            for strange in (torch.rand(kernel.m, device=a.device) < 0.5, rows >= random.randint(1, kernel.m)):
                found = library.matmul(a.masked_fill(strange[:, None], value), b)[~strange]
                # Sums in no fixed order may differ by as much from one call to the next.
                bound = 2 * (verify.ulp16(usual[~strange]) + loss)
                if not ((found.float() - usual[~strange].float()).abs() <= bound).all():
                    return False
    return True


def _fewest(rows: list[Row]) -> int | None:
    """Of one kernel's rows, from more to fewer; None where it is to serve no fewer than its own."""
    found = None
    for row in rows:
        if not _good(row):
            break
        found = row["rows"]
    return found


def _good(row: Row) -> bool:
    return row["apart"] and as_fast(row)
