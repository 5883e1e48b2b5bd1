"""Measures every kernel of an exported folder that may be dispatched, and settles the folder (`settle=true`)."""

from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.progress import track

from cudal2.overhead.cost import Row

BATCH = 25
"""The folder is settled after so many kernels, so that whatever ends the command loses no more than these."""


def run(called: ModuleType, folder: Path, accumulate: str) -> tuple[list[Row], int]:
    """All rows that were measured, and how many kernels `called` (`cost` or `neighbours`) has settled to use.

    Raises ValueError where there is nothing to measure, and whatever `called.eligible` and `called.settle` raise.
    """
    library, kernels = called.eligible(folder, accumulate)
    rows: list[Row] = []
    settled = 0
    try:
        for kernel in track(kernels, "calls", console=Console(stderr=True), transient=True):
            rows += called.figures(library, kernel)
            if len(rows) - settled >= BATCH:
                called.settle(folder, rows[settled:])
                settled = len(rows)
    finally:
        count = called.settle(folder, rows[settled:])
    if not rows:
        raise ValueError(
            f"{folder} holds nothing to settle: no kernel of {accumulate} sums is surely faster, or has room"
        )
    return rows, count
