"""A candidate's process: its workspace, a shared object loaded into a jailed runner, and the runner's greeting."""

import mmap
import os
import shutil
from pathlib import Path

import numpy as np

from cudal2.contract import CPU_CONTRACT
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.worker.cpu import elf
from cudal2.worker.cpu.arena import CANARY, PAGE, Arena, round_up
from cudal2.worker.cpu.session import READY, Side, failure, pipes
from cudal2.worker.outcome import Allowance, CandidateFailed
from cudal2.worker.sandbox import jail

CPU_SECONDS = 3600  # a stop for what slips past every other limit


class Workspace:
    """A memory file of one candidate's own, of which only what it asked for is left to it.

    It lies behind a page that nobody may touch; `cut` says how many bytes there are, up to the contract's limit.

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


def start_candidate(
    library: bytes,
    arena: Arena,
    room: Workspace,
    kind: jail.Kind,
    runner: Path,
    *,
    threads: int,
    memory: int,
    seconds: float,
    allowance: Allowance,
) -> Side:
    """Load a shared object into a jailed `runner` on `arena`, with `seconds` for every command, `allowance` for all.

    Returns its Side, stopped; `room` is cut to the bytes of workspace that it wants. Raises CandidateFailed where it
    cannot be loaded or wants too much; HarnessFault where the jail does not start.
    """
    folder = jail.job_folder()
    command_read, command_write, reply_read, reply_write = pipes()
    inherited = (command_read, reply_write, *arena.files_for_candidate(), os.dup(room.fd))
    problem, tools = arena.problem, runner.parent
    side, started = None, False
    try:
        kernel = folder / "kernel.so"
        kernel.write_bytes(_loadable(library))
        arguments = (runner, kernel, tools / "loading.bpf", tools / "running.bpf", *inherited)
        process = jail.start(
            kind,
            [*map(str, arguments), *map(str, (problem.m, problem.n, problem.k))],
            readable=[tools, folder],
            limits=jail.Limits(address_space=memory + arena.bytes + room.bytes, cpu_seconds=int(CPU_SECONDS * threads)),
            environment={"OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false"},
            pass_fds=inherited,
        )
        side = Side(command_write, reply_read, process, threads, seconds, allowance=allowance)
        with allowance.charged():
            room.cut(_greeting(side, problem))
        started = True
        return side
    except OSError as error:
        raise HarnessFault(f"cannot run a job in {folder}: {error}", "Make room, or point TMPDIR elsewhere") from error
    finally:
        for fd in inherited:
            os.close(fd)
        if side is None:
            os.close(command_write)
            os.close(reply_read)
        elif not started:
            side.close()
        shutil.rmtree(folder, ignore_errors=True)


def _loadable(library: bytes) -> bytes:
    try:
        return elf.without_constructors(library)
    except ValueError as error:
        raise CandidateFailed(Status.REJECTED, f"the shared object: {error}") from error


def _greeting(side: Side, problem: Problem) -> int:
    kind, code, detail = side.receive()
    if kind != READY:
        raise CandidateFailed(*failure(kind, code, detail, CPU_CONTRACT.declaration(problem)))
    if detail > (most := CPU_CONTRACT.workspace_limit):
        raise CandidateFailed(Status.REJECTED, f"asks for {detail} bytes of workspace, at most {most}")
    side.freeze()
    return detail
