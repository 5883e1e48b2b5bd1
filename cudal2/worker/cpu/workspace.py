"""The workspace of one candidate: a memory file of its own, of which only what it asked for is left to it."""

import mmap
import os

import numpy as np

from cudal2.contract import CPU_CONTRACT
from cudal2.records import HarnessFault
from cudal2.worker.cpu.arena import CANARY, PAGE, round_up


class Workspace:
    """Behind a page that nobody may touch, up to the contract's limit; `cut` says how many of them there are.

    It is made anew for each candidate, so that none finds what another left. Raises HarnessFault where the machine has
    not the memory.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("workspace")
        self.size = 0
        self._map: mmap.mmap | None = None
        os.ftruncate(self.fd, PAGE + CPU_CONTRACT.workspace_limit)  # takes no memory until somebody writes to it

    @property
    def bytes(self) -> int:
        """Address space that a candidate's mapping of it takes."""
        return PAGE + CPU_CONTRACT.workspace_limit

    def cut(self, size: int) -> None:
        """Leave `size` bytes, and what is left of their last page; a touch of anything behind is a SIGBUS."""
        self.size, end = size, PAGE + round_up(size, PAGE)
        try:
            os.ftruncate(self.fd, end)
            self._map = mmap.mmap(self.fd, end)
        except OSError as error:
            raise HarnessFault(f"no memory for a workspace of {size} bytes: {error}", "Free some memory") from error

    def poison(self) -> None:
        """Overwrite all of it with a pattern that is no number anyone expects."""
        self._bytes()[:] = CANARY

    def overrun(self) -> bool:
        """Whether the rest of its last page was written since `poison`."""
        return bool((self._bytes()[self.size :] != CANARY).any())

    def _bytes(self) -> np.ndarray:
        assert self._map is not None, "cut comes first"
        return np.frombuffer(self._map, dtype=np.uint8)[PAGE:]

    def close(self) -> None:
        """Give the memory back."""
        if self._map:
            self._map.close()
        os.close(self.fd)
