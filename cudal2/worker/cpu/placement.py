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
    ours = sorted(os.sched_getaffinity(0))
    return ours if 1 < len(ours) <= threads else []


def bind(process: int, cores: list[int]) -> list[int]:
    """Bind the threads that have run longest each to one of `cores`; returns them.

    A thread that has chosen its cores itself keeps them.
    """
    ran = {}
    with suppress(*GONE):
        for thread in Path(f"/proc/{process}/task").iterdir():
            ran[int(thread.name)] = int((thread / "schedstat").read_bytes().split()[0])
    busiest = sorted(ran, key=ran.__getitem__, reverse=True)[: len(cores)]
    bound = []
    for thread, core in zip(busiest, cores):
        with suppress(*GONE):
            if os.sched_getaffinity(thread) == set(cores):
                os.sched_setaffinity(thread, [core])
                bound.append(thread)
    return bound


def release(threads: list[int], cores: list[int]) -> None:
    """Let threads that were bound run on all of `cores` again; those that have ended are passed over."""
    for thread in threads:
        with suppress(*GONE):
            os.sched_setaffinity(thread, cores)
