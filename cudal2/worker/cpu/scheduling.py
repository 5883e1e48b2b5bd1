"""The cores that the threads of a process have, and those that they wait for."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from cudal2.config import WorkerConfig
from cudal2.worker.measurement import disturbed

GONE = FileNotFoundError, ProcessLookupError
Schedule = dict[int, tuple[int, int]]
"""By thread: nanoseconds that it had a core, and that it wanted one and had none."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """This process's own tensor work on so many threads.

    Small work takes one: those of a pool spin on for a while beside what is being timed, and on a busy machine they
    wait for each other ten times as long as they work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores(threads: int) -> list[int]:
    """On which so many threads are to wake up; none where a core stays idle and the kernel has a choice."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed if 1 < len(allowed) <= threads else []


def schedule(process: int) -> Schedule:
    """Of each thread that there is since it began; no thread where the process is gone."""
    folder, found = f"/proc/{process}/task", {}
    with suppress(*GONE):
        for thread in os.listdir(folder):  # noqa: PTH208 (asked often, while a core is wanted by others)
            with open(f"{folder}/{thread}/schedstat", "rb", 0) as file:  # noqa: PTH123
                ran, waited, _ = file.read().split()
            found[int(thread)] = int(ran), int(waited)
    return found


def longest_wait(before: Schedule, after: Schedule) -> float:
    """Seconds between these for which one thread, the one that waited longest, wanted a core and had none."""
    return max((waited - before.get(thread, (0, 0))[1] for thread, (_, waited) in after.items()), default=0) / 1e9


class Placement:
    """Where the threads of one process wake up: each busy one on a core of its own, of these `cores`.

    When a stopped process goes on, the kernel places its threads anew. With as many threads as cores it often puts two
    of them on one core, where they stay for the whole batch: 17 ms instead of 9. So the busy ones are bound while they
    stand still (`bind`), and free to go where they like as soon as they have woken (`release`).
    """

    def __init__(self, cores: list[int]) -> None:
        self._cores = cores
        self._bound: list[int] = []

    def bind(self, before: Schedule, after: Schedule) -> None:
        """Bind those threads to a core each that ran longest between these; one that chose its own keeps it."""
        if not self._cores:
            return
        self.release()
        ran = {thread: had - before.get(thread, (0, 0))[0] for thread, (had, _) in after.items()}
        busiest = sorted(ran, key=ran.__getitem__, reverse=True)
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


def check_ours(waited: float, name: str, config: WorkerConfig) -> None:
    """Raises Disturbed where a thread of baseline `name` had no core for that share of the time: others have it.

    Threads that work together wait for the slowest of them, and spin meanwhile. On two busy cores a library's call
    takes 2 to 200 times as long, beside a candidate on one thread that notices little; the baseline looks steady, and
    was as slow at the first look. A thread without a core shows it: for less than 0.01 of the time where nothing else
    runs, for 0.2 to 0.8 beside one or two busy programs on two cores. The bound follows `worker.disturbed`: what one
    thread loses by it, 1 / (1 − waited), may be the root of that.
    """
    if 1 / max(1 - waited, 1e-9) > math.sqrt(config.disturbed):
        raise disturbed(f"a thread of {name} waits for a core for {waited:.0%} of the time")
