"""What a candidate's launcher launches, as the planner writes it down, which runs it once in jail."""

import os
import select
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress

from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.worker.cuda import session
from cudal2.worker.cuda.plan import MAX_BYTES, Place, PlanError, pack_places
from cudal2.worker.gpu.buffers import range_of
from cudal2.worker.outcome import CandidateFailed
from cudal2.worker.sandbox import jail


def record(
    library: bytes,
    problem: Problem,
    places: Sequence[Place],
    base: int,
    kind: jail.Kind,
    seconds: float,
    stream: str = "own",
    rehearsed: bool = False,
) -> bytes:
    """What the planner wrote about a candidate's shared object, called at each of these places, which lie in the range
    that begins at `base`, within `seconds`.

    `stream` is what it captures: a stream of its "own", handed to the launcher, or the "per-thread" default stream.
    `rehearsed`: it is called once before, on the GPU, so that it can choose among its kernels by timing them.

    Raises PlanError where the candidate did not let it, CandidateFailed where it took too long.
    """
    folder = jail.job_folder()
    read, write = os.pipe()
    p = problem
    try:
        kernel, called_at = folder / "kernel.so", folder / "places"
        kernel.write_bytes(library)
        called_at.write_bytes(pack_places(places))
        where = (called_at, base, range_of(p, places, base))
        command = [session.programs() / "planner", kernel, write, *where, p.m, p.n, p.k, stream, int(rehearsed)]
        process = session.start(kind, [str(word) for word in command], [folder], write)
        os.close(write)
        write = -1
        try:
            return _read_recording(read, seconds)
        finally:
            process.kill()
    finally:
        for fd in (read, write):
            with suppress(OSError):
                os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)


def _read_recording(fd: int, seconds: float) -> bytes:
    """Everything up to the end of the pipe; the first byte says that the planner itself works."""
    text, deadline = bytearray(), time.monotonic() + session.READY_SECONDS
    while True:
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not text:
                raise HarnessFault("the planner did not start in time", "Look at the GPU with nvidia-smi")
            raise CandidateFailed(Status.TIMEOUT, "the launcher did not return in time")
        part = os.read(fd, 1 << 20)
        if not part:
            break
        if not text:
            deadline = time.monotonic() + seconds
        text += part
        if len(text) > MAX_BYTES:
            raise PlanError(f"the plan is longer than {MAX_BYTES} bytes")
    if text[:1] != b"+":
        said = text[:500].decode(errors="replace")
        if session.TAKEN_SAYS in said:
            raise session.AddressesTaken(said, "Try again")
        raise session.unopened("planner", said)
    return bytes(text[1:])
