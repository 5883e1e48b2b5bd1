"""From how many rows on a kernel may serve inputs with fewer rows than its own: `cudal2 bench call neighbours=true`.

In a model, N and K belong to a layer, and M, the number of tokens, varies. A kernel for M rows can multiply m < M rows
that are padded to M. Whether this is faster than torch depends on M - m, and on the steps in torch's own time. So each
dispatched kernel is called, as in `cost`, with numbers of rows from M - 1 down to the next smaller kernel of the same N
and K: on both sides of multiples of 64 (of 8 where M is small), where another tile begins. A kernel that is for several
numbers of rows is called with fewer than these. Measuring stops at the first
number at which the kernel is slower than torch, because `settle` lets it serve down to the smallest number such that it
was not slower there and at every larger one. Numbers between two measured ones are assumed to be alike.

The padding rows hold anything. So a kernel must not be used like this if one row of A influences another row of C. Sums
in which other rows cancel give a right product, but not if another row holds NaN; a kernel that checks for NaN is found
by a large number.
"""

import random
from collections import defaultdict
from pathlib import Path

import msgspec
import torch

from cudal2.exported.held import Kernel
from cudal2.exported.library import Library
from cudal2.overhead import cost
from cudal2.overhead.cost import Row, as_fast, calls, measured, operands, problem, rewrite, spread
from cudal2.records import HarnessFault
from cudal2.runtime import manifest
from cudal2.worker import limits, verify

PARTS = 4
"""The range of rows between two kernels is cut into so many parts; both sides of each cut are measured."""
STEPS = (64, 8, 1)
"""Multiples at which torch's time may step, because of tiles or of alignment."""
STRANGE = (torch.nan, 6e4)
"""Values in a row of A that must not influence other rows of the product."""


def run(folder: Path, accumulate: str = "f32", count: int = 50) -> list[Row]:
    """Figures of at most `count` dispatched kernels of an exported folder, small problems first: one record for each
    number of rows that was measured, from more to fewer; the last may be slower than torch. `apart` says whether each
    row of the product depends on its own row of A only.

    Raises ValueError where the folder holds no export or nothing to measure, HarnessFault where its kernels cannot run
    on this machine or cannot be called with fewer rows.
    """
    library, kernels = eligible(folder, accumulate)
    rows = [row for kernel in spread(kernels, count) for row in figures(library, kernel)]
    if not rows:
        remedy = "`cudal2 bench call settle=true` decides which are dispatched"
        raise ValueError(f"{folder} dispatches no kernel of {accumulate} sums with room for fewer rows; {remedy}")
    return rows


def eligible(folder: Path, accumulate: str) -> tuple[Library, list[Kernel]]:
    """The kernels that are dispatched, small problems first, but for those that were not surely faster with the fewest
    rows that they are for. Raises HarnessFault as `run`."""
    library, kernels = cost.eligible(folder, accumulate, _down_to_its_fewest)
    if not library.pads:
        raise HarnessFault(f"{folder} was exported before kernels served fewer rows", "Export again")
    return library, kernels


def _down_to_its_fewest(kernel: manifest.Kernel) -> bool:
    return kernel.dispatch and (
        kernel.dispatch_rows is None or kernel.rows is None or kernel.dispatch_rows[0] == kernel.rows[0]
    )


def settle(folder: Path, rows: list[Row]) -> int:
    """Lets each kernel in `rows` serve from the fewest rows on at which, and at all above, it was as fast as torch.

    A kernel that did not serve its calls, or was not measured, is not changed. Returns the number of kernels that then
    serve fewer rows than their own. Raises HarnessFault where the folder cannot be written.
    """
    export = manifest.read(folder)
    descents = defaultdict(list)
    for row in rows:
        descents[row["problem"]].append(row)
    fewest = {name: _fewest(descent) for name, descent in descents.items() if all(row["served"] for row in descent)}
    kernels = tuple(
        msgspec.structs.replace(kernel, fewest_rows=fewest[kernel.problem.name])
        if kernel.problem.name in fewest
        else kernel
        for kernel in export.kernels
    )
    rewrite(folder, msgspec.structs.replace(export, kernels=kernels))
    return sum(kernel.dispatch and kernel.fewest_rows is not None for kernel in kernels)


def numbers(below: int, m: int) -> list[int]:
    """The numbers of rows to measure between kernels of `below` and of `m` rows, both excluded, from more to fewer."""
    part = (m - below) / PARTS
    step = next(step for step in STEPS if step <= max(part, 1))
    cuts = [round((below + i * part) / step) * step for i in range(PARTS)]
    chosen = {m - 1, *(cut + side for cut in cuts for side in (0, 1))}
    return sorted((rows for rows in chosen if below < rows < m), reverse=True)


def figures(library: Library, kernel: Kernel) -> list[Row]:
    """A row for each number of rows that was measured, from more to fewer; the last may be slower than torch."""
    own, first = problem(kernel), kernel.rows[0]
    alike = [other for other in library.kernels if msgspec.structs.replace(problem(other), m=own.m) == own]
    below = max((other.rows[1] for other in alike if other.rows[1] < first), default=0)
    rows: list[Row] = []
    apart = _apart(library, kernel)
    for count in numbers(below, first):
        rows.append(measured(library, kernel, count) | {"apart": apart})
        if not (rows[-1]["served"] and _good(rows[-1])):
            break
    return rows


def _apart(library: Library, kernel: Kernel) -> bool:
    """Whether STRANGE values, in about half of the rows of A or in all behind one, change only these rows of C."""
    a, weight, bias = operands(library, kernel, kernel.m)
    rows = torch.arange(kernel.m, device=a.device)
    loss = limits.loss_bound(problem(kernel), 1)
    with torch.no_grad():
        usual = calls(library, kernel, a, weight, bias)[""]()
        for value in STRANGE:
            for strange in (torch.rand(kernel.m, device=a.device) < 0.5, rows >= random.randint(1, kernel.m)):
                spoilt = a.masked_fill(strange[:, None], value)
                product = calls(library, kernel, spoilt, weight, bias)[""]()[~strange]
                # If a kernel sums in no fixed order, its results may differ as much from one call to the next.
                bound = 2 * (verify.ulp(usual[~strange]) + loss)
                if not ((product.float() - usual[~strange].float()).abs() <= bound).all():
                    return False
    return True


def _fewest(rows: list[Row]) -> int | None:
    """The fewest rows that a kernel is to serve, from its records in order; None where only its own number."""
    fewest = None
    for row in rows:
        if not _good(row):
            break
        fewest = row["rows"]
    return fewest


def _good(row: Row) -> bool:
    return row["apart"] and as_fast(row)
