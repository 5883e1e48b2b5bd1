"""One timing at a time on a machine, and no build beside it: a lock shared by all processes of a user."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from cudal2.worker.sandbox import jail


@contextmanager
def device(exclusive: bool, name: str = "device") -> Iterator[None]:
    """Hold the machine, or the GPU, of that name: alone to time, or together with others who do not time."""
    with (jail.scratch() / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
