"""Which processes are below another, for tests that nothing is left behind."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cudal2.interrupt import children


def below(pid: int) -> list[int]:
    """The living descendants of a process."""
    found = children(pid)
    return found + [further for child in found for further in below(child)]


def names(pids: Iterable[int]) -> set[str]:
    """What those that are alive are called."""
    return {stat.partition(" (")[2].rpartition(") ")[0] for pid in pids if (stat := _alive(pid))}


def wait_for(done: Callable[[], object], seconds: float = 180.0) -> bool:
    """Whether something was so within these seconds."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _alive(pid: int) -> str:
    """Its line in `/proc`; "" for one that has ended, whether or not its parent (perhaps a slow init) was told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return "" if text.rpartition(") ")[2][0] in "ZX" else text
