"""No process outlives the one that needs it: how a pool's worker process leaves, and what is below it.

A worker leaves when its pool's process is gone, however that ended, or tells it to (SIGTERM). Below it are compilers,
candidates (often stopped) and the vendor's library, each in a process group of its own. They are killed by groups,
since a compiler has processes of its own, and only after the worker itself: it would take their end for a verdict and
write that to the cache.

Where the worker is killed before it can do so, the kernel does the rest: the jail and `confine.ends_with_parent` tie
the first process of each group to the process that started it.
"""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path

LEAVING_SECONDS = 2.0
"""How long a process may take to leave, and to end what is below it, before it is killed."""


def leave_with_parent() -> None:
    """From here on this process, a child of `multiprocessing`, leaves when its parent is gone, and upon SIGTERM.

    SIGINT is ignored: Ctrl-C reaches every process of a terminal, and is the parent's to handle.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # a handler, so that the next line has it reported
    signal.set_wakeup_fd(told)  # at once, even while the main thread waits inside a library
    threading.Thread(target=_leave, args=(heard,), daemon=True).start()


def end(*executors: ProcessPoolExecutor) -> None:
    """Tell their processes, which called `leave_with_parent`, to leave, and kill those that do not; what is under way
    is lost, and whoever waits for it gets BrokenProcessPool.
    """
    processes = [process for executor in executors for process in list((executor._processes or {}).values())]
    for process in processes:
        process.terminate()
    until = time.monotonic() + LEAVING_SECONDS
    for process in processes:
        if not wait([process.sentinel], max(0.0, until - time.monotonic())):
            process.kill()
            process.join()
    # One that was killed in the middle of sending a result leaves half of it in the pipe, and the executor's thread
    # waits for the rest as long as anybody could write it; this process could be the last.
    for executor in executors:
        if executor._result_queue is not None:
            executor._result_queue._writer.close()  # type: ignore[attr-defined]


def children(pid: int) -> list[int]:
    """The processes that `pid` started, or was left with, and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(") ")[2].split()[:2]
        except OSError:  # ended just now
            continue
        if int(parent) == pid and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def _leave(heard: int) -> None:
    parent = parent_process()
    assert parent is not None
    wait([heard, parent.sentinel])
    me = os.getpid()
    ends = [me]
    for child in children(me):
        with suppress(ProcessLookupError):
            ends.append(-child if os.getpgid(child) == child else child)
    # By another process, so that this one is the first to end.
    kill = ["/bin/sh", "-c", 'kill -s KILL -- "$@"', "sh", *map(str, ends)]
    subprocess.Popen(kill, start_new_session=True, stderr=subprocess.DEVNULL)
    time.sleep(5)
    os._exit(1)
