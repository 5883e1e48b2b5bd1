"""A process that runs calls on an arena's buffers when told, and the parent's clock around it.

The candidate's host (`runner.cpp`, jailed) and the baselines' host (`baselines.py`, trusted) speak the same
protocol over two pipes, so that whatever the protocol costs, both sides of a comparison pay it. A side is stopped
(SIGSTOP) whenever it is not being timed: it cannot compute ahead, spin beside its rival, or finish a call that it
has already called done. The clock runs from before it is let go until after it was told to stop.
"""

import math
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cudal2.contract import ENTRY
from cudal2.records import Status
from cudal2.worker.cpu.scheduling import Placement, Schedule, cores, longest_wait, schedule
from cudal2.worker.outcome import Allowance, CandidateFailed
from cudal2.worker.sandbox import jail

COMMAND, REPLY = struct.Struct("=II"), struct.Struct("=IiQ")
NOTHING, ORDER = (0, 0), (1, 0)
"""Commands for no call at all: what only wants a reply, and what says that an order waits."""
DONE, READY, NOT_LOADED, NO_SYMBOL, RETURNED_ERROR, SIGNALLED, FORBIDDEN, TERMINATED = range(8)
REGIONS = ("", "an input", "the output", "the workspace")

EXCEPTIONS = (
    *("", "std::bad_alloc, memory ran out", "std::out_of_range", "std::length_error", "std::invalid_argument"),
    *("std::runtime_error", "std::exception", "of another type"),
)
"""What a candidate may have thrown that nobody caught, by its place in `runner.cpp`."""

Meanwhile = tuple[float, Callable[[], None]]
"""Something to do so many seconds after a batch of calls has begun."""


class Side:
    """One process of so many `threads` behind two pipes, which has `seconds` to reply to each command, and its
    `allowance` for all of them.

    What goes wrong on the other side is raised as `failed(status, reason)`: a candidate's failure is data, that
    of the trusted baseline host is a fault.
    """

    def __init__(
        self,
        command_fd: int,
        reply_fd: int,
        process: jail.Jailed,
        threads: int,
        seconds: float,
        failed: Callable[[Status, str], Exception] = CandidateFailed,
        allowance: Allowance | None = None,
    ) -> None:
        self._command, self._reply, self._process = command_fd, reply_fd, process
        self.seconds, self.failed = seconds, failed
        self.allowance = allowance or Allowance(math.inf)
        self.woken = 0.0
        """Seconds after which it answered in the last run that it was awake."""
        self.replied = 0.0
        """Seconds that the calls of the last run took alone, without waking the process and stopping it."""
        self.cores = 0.0
        """Cores that it kept busy in the mean of the last run, threads that have ended included."""
        self.waited = 0.0
        """Share of the last run for which a thread of it wanted a core and had none; the one that waited longest."""
        self.started = 0.0
        """When the process was let go in the last run, by `time.perf_counter`."""
        self.met: list[Callable[[], None]] = []
        """What was done meanwhile in the last run when the calls had been asked for, and not before."""
        self._closed = False
        self._placement = Placement(cores(threads))
        self._schedule: Schedule = {}

    def receive(self) -> tuple[int, int, int]:
        """The next reply: kind, code, detail. It comes whole: what can be read is the end of what was asked for."""
        if not self._answered(min(self.seconds, self.allowance.left)):
            raise self._late("did not finish in time")
        data = os.read(self._reply, REPLY.size + 1)
        if not data:
            raise self.failed(Status.LAUNCH_ERROR, "the process ended without a reply")
        if len(data) != REPLY.size:
            raise self.failed(Status.LAUNCH_ERROR, f"the process sent nonsense ({len(data)} bytes)")
        return REPLY.unpack(data)

    def _answered(self, seconds: float) -> bool:
        """Whether a reply can be read, within so many seconds."""
        return bool(select.select([self._reply], [], [], max(0.0, seconds))[0])

    def _late(self, said: str) -> Exception:
        return self.failed(Status.TIMEOUT, said if self.allowance.left > 0 else self.allowance.reason)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """In the body it has so many seconds at most to reply to a command."""
        before, self.seconds = self.seconds, min(seconds, self.seconds)
        try:
            yield
        finally:
            self.seconds = before

    def run(self, first: int, count: int, meanwhile: Sequence[Meanwhile] = ()) -> float:
        """Seconds that calls `first` to `first + count - 1` took. When this returns, all of the side's threads stand
        still.

        Each of `meanwhile` is done that many seconds after the process is let go, whatever it says it is doing then,
        unless the calls are over by that time.
        """
        with self.allowance.charged():
            return self._run(first, count, meanwhile)

    def _run(self, first: int, count: int, meanwhile: Sequence[Meanwhile]) -> float:
        pending = sorted(meanwhile, key=lambda one: one[0])
        busy = self._process.busy_seconds()
        started = self.started = time.perf_counter()
        self._process.signal(signal.SIGCONT)
        # Its threads wake up while we wait for the reply to nothing: bound to cores of their own until then.
        self._tell(*NOTHING)
        self._until_reply(pending, started)
        self._done()
        self._placement.release()
        told = time.perf_counter()
        self.woken = told - started
        self._tell(first, count)
        self.met = self._until_reply(pending, started)
        self._done()
        self.replied = time.perf_counter() - told
        self._process.signal(signal.SIGSTOP)
        elapsed = time.perf_counter() - started
        # Not later: whoever has to stop may wait for a core until then, and holds nothing up.
        self.waited = longest_wait(self._schedule, schedule(self._process.inside)) / elapsed
        self._wait_until_still()
        self.cores = (self._process.busy_seconds() - busy) / (time.perf_counter() - started)
        return elapsed

    def _until_reply(self, pending: list[Meanwhile], started: float) -> list[Callable[[], None]]:
        """Do what is pending as its time comes, until there is a reply; returns what was done."""
        done = []
        while pending:
            if self._answered(started + pending[0][0] - time.perf_counter()):
                break
            done.append(pending.pop(0)[1])
            done[-1]()
        return done

    def _done(self) -> None:
        kind, code, detail = self.receive()
        if kind != DONE:
            raise self.failed(*failure(kind, code, detail))

    def _tell(self, first: int, count: int) -> None:
        if self._answered(0):
            self._done()  # what it says where it has ended is the reason
            raise self.failed(Status.LAUNCH_ERROR, "the process replies before it is asked")
        try:
            os.write(self._command, COMMAND.pack(first, count))
        except BrokenPipeError as error:
            raise self.failed(Status.LAUNCH_ERROR, "the process ended between calls") from error

    def order(self) -> None:
        """Tells the baseline host to read its socket."""
        self.run(*ORDER)

    def freeze(self) -> None:
        """Stop the process until the next run; when this returns, every thread of it stands still."""
        self._process.signal(signal.SIGSTOP)
        self._wait_until_still()

    def _wait_until_still(self) -> None:
        deadline = time.perf_counter() + self.seconds
        while not self._process.stopped():
            if time.perf_counter() > deadline:
                raise self._late("could not be stopped")
            time.sleep(20e-6)
        before, self._schedule = self._schedule, schedule(self._process.inside)
        self._placement.bind(before, self._schedule)

    def close(self) -> None:
        """End the process and close the pipes; harmless when done before."""
        if self._closed:
            return
        self._closed = True
        self._process.kill()
        os.close(self._command)
        os.close(self._reply)


def failure(kind: int, code: int, detail: int, entry: str = ENTRY) -> tuple[Status, str]:
    """What a reply other than DONE and READY means; `entry` is the declaration of what was looked for."""
    if kind == NOT_LOADED:
        return (Status.LAUNCH_ERROR, "the shared object could not be loaded")
    if kind == NO_SYMBOL:
        return (Status.REJECTED, f"nothing defines {entry}")
    if kind == RETURNED_ERROR:
        return (Status.LAUNCH_ERROR, f"{ENTRY} returned {code}")
    if kind == FORBIDDEN:
        return (Status.LAUNCH_ERROR, f"forbidden system call {code}")
    if kind == TERMINATED and 0 < detail < len(EXCEPTIONS):
        return (Status.LAUNCH_ERROR, f"an exception was not caught: {EXCEPTIONS[detail]}")
    if kind == TERMINATED:
        return (Status.LAUNCH_ERROR, "std::terminate was called")
    if kind == SIGNALLED and code == signal.SIGABRT:
        return (Status.LAUNCH_ERROR, "abort was called")
    if kind == SIGNALLED and 0 < detail < len(REGIONS):
        return (Status.OUT_OF_BOUNDS, f"touched memory beside {REGIONS[detail]}, or wrote to it")
    if kind == SIGNALLED:
        # Real-time signals have no name; a candidate may have sent any number.
        named = {each.value: each.name for each in signal.Signals}
        return (Status.LAUNCH_ERROR, f"ended by {named.get(code, f'signal {code}')}")
    return (Status.LAUNCH_ERROR, f"the process sent nonsense ({kind})")


def pipes() -> tuple[int, int, int, int]:
    """Command reader, command writer, reply reader, reply writer. What is written to the latter at once is read at
    once: nobody has the parent wait for the rest of a reply, and look at nothing else meanwhile."""
    return *os.pipe(), *os.pipe2(os.O_CLOEXEC | os.O_DIRECT)
