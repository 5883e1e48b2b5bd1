"""A baseline in a process of its own, on the shared buffers: the A side of an A/A measurement.

It takes the candidate's place: another process, another context, other memory than the referee's baseline side. What is
then left between the two is the harness.
"""

import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from cudal2.records import HarnessFault
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.arena import matrices
from cudal2.worker.cuda.buffers import BufferLayout, Perturbation
from cudal2.worker.cuda.memory import SharedMemory, imported
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.names import split
from cudal2.worker.cuda.vendor.side import BaselineSide
from cudal2.worker.sandbox.confine import ends_with_parent

COMMAND, REPLY = struct.Struct("=II?d"), struct.Struct("=dd")
READY = b"+"


class Mirror:
    """Baseline `name` in another process on `memory`; a context manager. HarnessFault where the process fails."""

    def __init__(self, name: str, memory: SharedMemory, buffers: BufferLayout, cache: Cache) -> None:
        self._memory = memory.tensor
        self._socket, remote = socket.socketpair()
        words = (remote.fileno(), memory.fd, name, cache.root, msgspec.json.encode(buffers).decode())
        command = [*ends_with_parent(), sys.executable, "-m", "cudal2.worker.cuda.vendor.mirror", *map(str, words)]
        self._process = subprocess.Popen(command, pass_fds=(remote.fileno(), memory.fd), start_new_session=True)
        remote.close()

    def __enter__(self) -> "Mirror":
        try:
            self._exactly(len(READY))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def run(self, sets: Sequence[int], perturbations: Sequence[Perturbation] = ()) -> tuple[float, float]:
        """One pass over these neighbouring sets; seconds on the device's clock and on the host's."""
        return self._ask(sets, perturbations, False, 0.0)

    def host(self, sets: Sequence[int], gap: float, perturbations: Sequence[Perturbation] = ()) -> list[float]:
        """Seconds of single calls on these neighbouring sets on the host's clock, all together, as a list of one."""
        return [self._ask(sets, perturbations, True, gap)[1]]

    def _ask(
        self, sets: Sequence[int], perturbations: Sequence[Perturbation], singly: bool, gap: float
    ) -> tuple[float, float]:
        self._write(perturbations)
        self._socket.sendall(COMMAND.pack(min(sets), max(sets) + 1, singly, gap))
        device, host = REPLY.unpack(self._exactly(REPLY.size))
        return device, host

    def _write(self, perturbations: Sequence[Perturbation]) -> None:
        """Ahead of all calls: it is known of the vendor that a call does no other call's work."""
        for offset, value in perturbations:
            self._memory[offset // 2] = value
        torch.cuda.synchronize()

    def _exactly(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise HarnessFault("the mirror of the vendor's library ended", "Look at the messages above")
        return data


def main(socket_fd: int, memory_fd: int, name: str, cache: Path, buffers: BufferLayout) -> None:
    """Answer commands until the other side is gone."""
    torch.cuda.init()
    torch.empty(1, device="cuda")
    vendor = Vendor(0, Cache(cache))
    side = BaselineSide(vendor, buffers, *matrices(imported(memory_fd, buffers.bytes), buffers))
    vendor.prepare(buffers.problem, side.sets)
    with socket.socket(fileno=socket_fd) as commands:
        commands.sendall(READY)
        while data := commands.recv(COMMAND.size, socket.MSG_WAITALL):
            start, stop, singly, gap = COMMAND.unpack(data)
            window = slice(start, stop)
            side.refresh(split(name)[1], window)
            torch.cuda.synchronize()
            seconds = side.host_seconds(name, window, gap) if singly else side.run(name, window)
            commands.sendall(REPLY.pack(seconds, seconds))


if __name__ == "__main__":
    _name, _cache, _buffers = sys.argv[3:]
    main(int(sys.argv[1]), int(sys.argv[2]), _name, Path(_cache), msgspec.json.decode(_buffers, type=BufferLayout))
