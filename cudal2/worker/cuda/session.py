"""The runner, which replays a candidate's kernels, and how the referee talks to it.

It is trusted code, jailed all the same because it hands an untrusted cubin to the driver, and serves one candidate: it
has its context ready before, and is killed after.
"""

import array
import math
import os
import secrets
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from cudal2.contract import CUDA_CONTRACT
from cudal2.records import HarnessFault, Status, digest
from cudal2.worker.build import artefact, compiler, trusted
from cudal2.worker.cuda import device, launcher
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.gpu.history import Touches
from cudal2.worker.outcome import Allowance, CandidateFailed
from cudal2.worker.sandbox import jail, seccomp

LOAD, RUN, HOST, TURNS, BESIDE, RESERVE = 1, 2, 3, 4, 5, 6
KEPT, BEFORE, BEHIND = 0, 1, 2
"""How a second kernel is loaded: beside the first as it is, or both anew, the first before it or behind it."""
SECOND, BEGINS = 1 << 31, 1 << 30
"""Mark at the number of a set that its plan is that of the second slot, and that a turn begins with it."""
COMMAND, REPLY = struct.Struct("=IIIIQQQd"), struct.Struct("=iIdd")
NOT_FOUND, ILLEGAL_ADDRESS = 500, 700  # CUresult
TAKEN = -2
"""What a runner answers where something of its own lies at the addresses that it is to map the buffers at."""
TAKEN_SAYS = "reserved other addresses"
"""What a planner says then; range.h has the words."""
TRIES = 4
READY_SECONDS = 30.0
SPARES = 4
"""Runners that wait: a context takes 0.15 s alone, and 0.75 s beside sixteen compilers."""
HOST_MEMORY = 8 << 30
NO_ROOM = "CUDA_ERROR_OUT_OF_MEMORY"
FULL = "The GPU's memory is full: end other processes on it (nvidia-smi lists them), or run fewer side by side"


@cache
def programs() -> Path:
    """The folder with `planner` and `runner`, compiled on first use against this machine's driver."""
    here = Path(__file__).parent / "programs"
    sources = {path.name: path.read_text() for path in sorted(here.glob("*.cpp")) + sorted(here.glob("*.h"))}
    sources |= launcher.sources()
    include = toolchain.find().root / "include"
    library = device.find().driver_library

    def make(folder: Path) -> None:
        launcher.lay_out(folder)
        headers = [f"-I{folder / 'include'}", f"-I{folder / 'src'}", f"-I{include}"]
        for name, more in (("planner", []), ("runner", [str(folder / "src/hgemm.cpp")])):
            flags = ["-std=c++17", "-O2", "-pthread", *headers, *CUDA_CONTRACT.defines()]
            command = [compiler(), *flags, str(here / f"{name}.cpp"), *more, library, "-ldl", "-o", str(folder / name)]
            trusted(command)

    return artefact(f"cuda-{digest(*sources.values(), *CUDA_CONTRACT.defines(), library)[:16]}", make)


def start(kind: jail.Kind, command: list[str], readable: list[Path], fd: int) -> jail.Jailed:
    """A process with the GPU, in a jail, that inherits `fd`."""
    return jail.start(
        kind,
        command,
        readable=[programs(), *device.readable(), *readable],
        devices=device.nodes(),
        system=True,
        limits=jail.Limits(address_space=None, data=HOST_MEMORY, cpu_seconds=600),
        environment=device.environment(),
        filter_program=seccomp.gpu(),
        pass_fds=(fd,),
    )


def unopened(program: str, why: str) -> HarnessFault:
    return HarnessFault(f"the {program} could not open the GPU: {why}", FULL if NO_ROOM in why else "See cudal2 doctor")


class AddressesTaken(HarnessFault):
    """In this process the addresses are not free. In the next one they most likely are."""


class Runner:
    """One runner process. Every command has `seconds` to be answered, and all of them the `allowance`; the first error
    ends the process.
    """

    def __init__(self, kind: jail.Kind) -> None:
        self._socket, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            command = [str(programs() / "runner"), str(remote.fileno())]
            self._process = start(kind, command, [], remote.fileno())
        except BaseException:
            self._socket.close()
            raise
        finally:
            remote.close()
        self._ready = False
        self.seconds, self.allowance = READY_SECONDS, Allowance(math.inf)

    def wait_ready(self) -> None:
        """Wait for the context that the process makes on its own. Raises HarnessFault."""
        if self._ready:
            return
        try:
            self._receive()
        except CandidateFailed as failed:  # no candidate is here yet
            self.close()
            raise unopened("runner", failed.reason) from failed
        self._ready = True

    def reserve(self, base: int) -> None:
        """Have the buffers begin at this address. Raises AddressesTaken where they cannot."""
        self.wait_ready()
        self._send(COMMAND.pack(RESERVE, 0, 0, 0, 0, base, 0, 0.0), ())
        self._receive()

    def load(self, packed: bytes, memory: int, nbytes: int) -> None:
        """Map the buffers behind the file descriptor `memory`, where they are to begin, and load the packed plans,
        which were recorded there. Raises CandidateFailed.
        """
        self._hand(COMMAND.pack(LOAD, 0, 0, 0, nbytes, 0, 0, 0.0), packed, memory)

    def load_second(self, cubin: bytes | None, order: int = KEPT) -> None:
        """Load a cubin beside the first, in place of what was there before; its kernels are launched as the first's.

        None is the one that was there before, loaded anew. Raises CandidateFailed.
        """
        command = COMMAND.pack(BESIDE, 0, 0, order, 0, 0, 0, 0.0)
        if cubin is None:
            self._send(command, ())
            self._receive()
        else:
            self._hand(command, cubin)

    def _hand(self, command: bytes, data: bytes, *memory: int) -> None:
        """A command with a file that holds this data; waits for its answer."""
        file = os.memfd_create("loaded")
        try:
            with os.fdopen(os.dup(file), "wb") as out:
                out.write(data)
            rights = array.array("i", [file, *memory])
            self._socket.sendmsg([command], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BrokenPipeError as error:
            raise HarnessFault("the runner ended before it was used", "Try again") from error
        finally:
            os.close(file)
        self._receive()

    def run(self, sets: Sequence[int], touches: Touches | None = None) -> tuple[float, float]:
        """Replay the plans of these sets once, in this order, each behind its touches, if there are any; seconds on the
        device's clock and on the host's.
        """
        self._send(COMMAND.pack(RUN, len(sets), _each(touches, sets), 0, 0, 0, 0, 0.0), sets, touches)
        device_seconds, host_seconds, _ = self._receive()
        return device_seconds, host_seconds

    def turns(self, turns: Sequence[tuple[int, Sequence[int]]]) -> list[float]:
        """Replay (slot, sets) after (slot, sets) without a pause; seconds of each turn on the device's clock. Slots are
        0 and 1, and no turn is empty.
        """
        calls = [
            number | SECOND * slot | BEGINS * (not place) for slot, sets in turns for place, number in enumerate(sets)
        ]
        self._send(COMMAND.pack(TURNS, len(calls), 0, 0, 0, 0, 0, 0.0), calls)
        return list(array.array("d", self._receive()[2]))

    def host(self, sets: Sequence[int], gap: float, touches: Touches | None = None) -> list[float]:
        """Seconds of one call on each of these sets on the host's clock, `gap` seconds apart in the mean.

        Where there are touches, as many come just before each call, outside its time.
        """
        seed = secrets.randbits(63)
        self._send(COMMAND.pack(HOST, len(sets), _each(touches, sets), 0, 0, 0, seed, gap), sets, touches)
        return list(array.array("d", self._receive()[2]))

    def _send(self, command: bytes, sets: Sequence[int], touches: Touches | None = None) -> None:
        values = b"" if touches is None else touches.tobytes()
        try:
            self._socket.sendall(command + array.array("I", sets).tobytes() + values)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise CandidateFailed(Status.LAUNCH_ERROR, "the runner ended between calls") from error

    def _receive(self) -> tuple[float, float, bytes]:
        if self.allowance.left <= 0:
            raise CandidateFailed(Status.TIMEOUT, self.allowance.reason)
        deadline = time.monotonic() + min(self.seconds, self.allowance.left)
        with self.allowance.charged():
            status, length, device_seconds, host_seconds = REPLY.unpack(self._exactly(REPLY.size, deadline))
            data = self._exactly(length, deadline)
        if status == TAKEN:
            raise AddressesTaken(data.decode(errors="replace"), "Try again")
        if status < 0:
            raise HarnessFault(f"the runner failed: {data.decode(errors='replace')}", "Try again; see cudal2 doctor")
        if status:
            raise CandidateFailed(*_meaning(status, data.decode(errors="replace")))
        return device_seconds, host_seconds, data

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                said = "did not finish in time" if self.allowance.left > 0 else self.allowance.reason
                raise CandidateFailed(Status.TIMEOUT, said)
            part = b""
            with suppress(ConnectionResetError):
                part = self._socket.recv(size - len(data))
            if not part:
                raise CandidateFailed(Status.LAUNCH_ERROR, "the runner ended without a reply")
            data += part
        return bytes(data)

    def close(self) -> None:
        """End the process, whatever its kernels are doing; harmless when done before."""
        if self._socket.fileno() >= 0:
            self._process.signal(signal.SIGKILL)
            self._process.kill()
            self._socket.close()


def _each(touches: Touches | None, sets: Sequence[int]) -> int:
    return 0 if touches is None else len(touches) // len(sets)


def _meaning(status: int, text: str) -> tuple[Status, str]:
    """A driver's error while a candidate was loaded or replayed, as a verdict's status and reason."""
    if status == NOT_FOUND:
        return Status.PLAN_ERROR, text
    if status == ILLEGAL_ADDRESS:
        return Status.OUT_OF_BOUNDS, "a kernel touched memory outside its buffers"
    return Status.LAUNCH_ERROR, text


class Runners:
    """Keeps a few runners waiting with their contexts open, so that a verdict does not wait for one."""

    def __init__(self, kind: jail.Kind) -> None:
        self._kind = kind
        self._spare: deque[Runner] = deque()

    def take(self, base: int) -> Runner:
        """A runner that has seen no candidate and keeps the addresses from `base` on free; another starts in its place.

        Where something of a runner's own lies there, the next one is taken. Raises HarnessFault.
        """
        for tries in range(1, TRIES + 1):
            while len(self._spare) <= SPARES:
                self._spare.append(Runner(self._kind))
            runner = self._spare.popleft()
            runner.wait_ready()
            try:
                runner.reserve(base)
                return runner
            except AddressesTaken:
                runner.close()
                if tries == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """End the runners that wait."""
        while self._spare:
            self._spare.pop().close()
