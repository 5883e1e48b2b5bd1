"""What a pool asks of whatever its workers run on: the processes of one machine, or the nodes of a cluster."""

from collections.abc import Hashable, Sequence
from concurrent.futures import Executor
from typing import Protocol

Slot = Hashable
"""A device that one worker process has for itself: a GPU, or a machine's processors."""


class Lost(Exception):
    """A slot is gone with what it had to do; the message says which and why. Another slot may do it."""


class Fleet(Protocol):
    """Slots, and how a worker process is started in one of them."""

    def check(self) -> None:
        """Raises HarnessFault where no worker could start, ValueError where the configuration names no such device."""

    def slots(self) -> Sequence[Slot]:
        """Those that may be given work now, at least one, all of the same Environment; HarnessFault where none is."""

    def start(self, slot: Slot) -> Executor:
        """An executor that will run the functions of `processes.py` in a process of its own; at once, nothing is waited
        for. Where that process dies a future of its raises BrokenExecutor, where the slot is gone Lost.
        """

    def end(self, *executors: Executor) -> None:
        """End their processes now, with whatever they do; whoever waits for it gets BrokenExecutor or Lost."""

    def close(self) -> None:
        """Leave nothing behind."""
