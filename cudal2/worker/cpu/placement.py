"""Where the threads of a stopped process wake up: each busy one on a core of its own.

When a stopped process goes on, the kernel places its threads anew. With as many threads as cores it often puts two of
them on one core, where they stay for the whole batch: 17 ms instead of 9. So the busy ones are bound while they stand
still, and free to go where they like as soon as they have woken.
"""

import os
from contextlib import suppress
from pathlib import Path

GONE = FileNotFoundError, ProcessLookupError


def cores(threads: int) -> list[int]:
    """On which so many threads are to wake up; none where a core stays idle and the kernel has a choice."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed if 1 < len(allowed) <= threads else []


class Placement:
    """Of one process, on these cores. `bind` it whenever it stands still, `release` it when it runs again."""

    def __init__(self, process: int, cores: list[int]) -> None:
        self._process, self._cores = process, cores
        self._ran: dict[int, int] = {}
        self._bound: list[int] = []

    def bind(self) -> None:
        """Bind those threads to a core each that ran longest since the last time; one that chose its own keeps it."""
        if not self._cores:
            return
        self.release()
        before, self._ran = self._ran, self._running_times()
        busiest = sorted(self._ran, key=lambda thread: self._ran[thread] - before.get(thread, 0), reverse=True)
        for thread, core in zip(busiest, self._cores):
            with suppress(*GONE):
                if os.sched_getaffinity(thread) == set(self._cores):
                    os.sched_setaffinity(thread, [core])
                    self._bound.append(thread)

    def release(self) -> None:
        """Let the bound threads run on every core again; those that have ended are passed over."""
        for thread in self._bound:
            with suppress(*GONE):
                os.sched_setaffinity(thread, self._cores)
        self._bound = []

    def _running_times(self) -> dict[int, int]:
        """Nanoseconds on a core of each thread that there is."""
        found = {}
        with suppress(*GONE):
            for folder in Path(f"/proc/{self._process}/task").iterdir():
                found[int(folder.name)] = int((folder / "schedstat").read_bytes().split()[0])
        return found
