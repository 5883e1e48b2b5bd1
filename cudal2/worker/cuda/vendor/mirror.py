"""The vendor's library in a process of its own, on the shared buffers: the A side of an A/A measurement.

It takes the candidate's place: another process, another context, other memory than the referee's vendor side. What is
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
from cudal2.worker.cuda.layout import Layout, Salt
from cudal2.worker.cuda.memory import SharedMemory, imported
from cudal2.worker.cuda.pairing import VendorSide
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.names import split
from cudal2.worker.sandbox.confine import ends_with_parent

COMMAND, REPLY = struct.Struct("=II?d"), struct.Struct("=dd")
READY = b"+"


class Mirror:
    """Baseline `name` in another process on `memory`; a context manager. HarnessFault where the process fails."""

    def __init__(self, name: str, memory: SharedMemory, layout: Layout, cache: Cache) -> None:
        self._memory = memory.tensor
        self._socket, theirs = socket.socketpair()
        words = (theirs.fileno(), memory.fd, name, cache.root, msgspec.json.encode(layout).decode())
        command = [*ends_with_parent(), sys.executable, "-m", "cudal2.worker.cuda.vendor.mirror", *map(str, words)]
        self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(), memory.fd), start_new_session=True)
        theirs.close()

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

    def run(self, sets: Sequence[int], salts: Sequence[Salt] = ()) -> tuple[float, float]:
        """One pass over these neighbouring sets; seconds on the device's clock and on the host's."""
        return self._ask(sets, salts, False, 0.0)

    def host(self, sets: Sequence[int], gap: float, salts: Sequence[Salt] = ()) -> list[float]:
        """Seconds of single calls on these neighbouring sets on the host's clock, all together, as a list of one."""
        return [self._ask(sets, salts, True, gap)[1]]

    def _ask(self, sets: Sequence[int], salts: Sequence[Salt], singly: bool, gap: float) -> tuple[float, float]:
        self._write(salts)
        self._socket.sendall(COMMAND.pack(min(sets), max(sets) + 1, singly, gap))
        device, host = REPLY.unpack(self._exactly(REPLY.size))
        return device, host

    def _write(self, salts: Sequence[Salt]) -> None:
        """Ahead of all calls: it is known of the vendor that a call does no other call's work."""
        for offset, value in salts:
            self._memory[offset // 2] = value
        torch.cuda.synchronize()

    def _exactly(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise HarnessFault("the mirror of the vendor's library ended", "Look at the messages above")
        return data


def main(socket_fd: int, memory_fd: int, name: str, cache: Path, layout: Layout) -> None:
    """Answer commands until the other side is gone."""
    torch.cuda.init()
    torch.empty(1, device="cuda")
    vendor = Vendor(0, Cache(cache))
    side = VendorSide(vendor, layout, *matrices(imported(memory_fd, layout.bytes), layout))
    vendor.prepare(layout.problem, side.sets)
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
    _name, _cache, _layout = sys.argv[3:]
    main(int(sys.argv[1]), int(sys.argv[2]), _name, Path(_cache), msgspec.json.decode(_layout, type=Layout))
