"""Commands of a run that judge in a tenth of a second what usually takes some, for tests of what becomes of the run."""

from collections.abc import Sequence
from pathlib import Path

from cudal2 import cli

HASTY = [  # one thread: two wait for each other where another test has a processor, and judging takes twice as long
    *("worker.threads=1", "worker.timing_seconds=0.1", "worker.batch_ms=2", "worker.min_pairs=3", "worker.max_pairs=5"),
    "worker.disturbed=1000",
]
PROGRAM = ["-m", "cudal2.cli"]


def succeeds(command: Sequence[object]) -> None:
    """Run a command, given as Python's arguments, in this process: another one would import everything anew."""
    assert cli.main([str(word) for word in command[len(PROGRAM) :]]) == 0


def search(run: Path, cache: Path, shapes: str, *more: str) -> list[str]:
    """`cudal2 search` of these shapes (with commas between), as Python's arguments."""
    where = [f"run={run}", f"worker.cache={cache}", "search.neighbours=0"]
    return [*PROGRAM, "search", f"shapes={shapes}", *where, *HASTY, *more]


def evaluate(run: Path, cache: Path, shapes: str, *more: str) -> list[str]:
    """`cudal2 eval` of these shapes, as Python's arguments."""
    where = [str(run), f"worker.cache={cache}", "neighbours=0"]
    return [*PROGRAM, "eval", *where, f"shapes={shapes}", *HASTY, *more]
