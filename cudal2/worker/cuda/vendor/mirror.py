"""A baseline in a process of its own, on the shared buffers: the A side of an A/A measurement.

It takes the candidate's place: another process, another context, other memory than the referee's baseline side. What is
then left between the two is the harness.
"""

import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch

from cudal2.records import HarnessFault
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.memory import SharedMemory, imported
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.side import BaselineSide
from cudal2.worker.gpu.arena import views
from cudal2.worker.gpu.buffers import BufferLayout
from cudal2.worker.gpu.history import History
from cudal2.worker.sandbox.confine import ends_with_parent

COMMAND, REPLY = struct.Struct("=II?d"), struct.Struct("=d")
ROWS = len(History.__struct_fields__) - 1
"""A history is sent as 64-bit numbers: its order, then so many rows, of one number for each touch."""
READY = b"+"


class Mirror:
    """Baseline `name`, of the layout that `memory` is in, in another process; a context manager. HarnessFault where
    the process fails."""

    def __init__(self, name: str, memory: SharedMemory, buffers: BufferLayout, cache: Cache) -> None:
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

    def run(self, history: History) -> tuple[float, float]:
        """A history's calls; seconds on the device's clock, and as if the host's had seen no others."""
        seconds = self._ask(history, False, 0.0)
        return seconds, seconds

    def host(self, history: History, gap: float) -> list[float]:
        """Seconds of a history's calls one by one on the host's clock, all together, as a list of one."""
        return [self._ask(history, True, gap)]

    def _ask(self, history: History, singly: bool, gap: float) -> float:
        order, *rows = (np.array(one, np.int64) for one in msgspec.structs.astuple(history))
        data = np.concatenate([order, *rows]).tobytes()
        self._socket.sendall(COMMAND.pack(len(order), len(rows[0]), singly, gap) + data)
        return REPLY.unpack(self._exactly(REPLY.size))[0]

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
    *given, c = views(imported(memory_fd, buffers.bytes), buffers)
    side = BaselineSide(vendor, buffers, given, c)
    vendor.prepare(buffers.problem, side.sets)
    with socket.socket(fileno=socket_fd) as commands:
        commands.sendall(READY)
        while data := commands.recv(COMMAND.size, socket.MSG_WAITALL):
            calls, touches, singly, gap = COMMAND.unpack(data)
            history = _received(commands.recv(8 * (calls + ROWS * touches), socket.MSG_WAITALL), calls)
            seconds = side.host_seconds(name, history, gap) if singly else side.run(name, history)
            commands.sendall(REPLY.pack(seconds))


def _received(data: bytes, calls: int) -> History:
    numbers = np.frombuffer(data, np.int64)
    number, operand, row, column, bits, changes, over = numbers[calls:].reshape(ROWS, -1)
    flags = changes.astype(bool), over.astype(bool)
    return History(numbers[:calls].tolist(), number, operand, row, column, bits.astype(np.uint16), *flags)


if __name__ == "__main__":
    _name, _cache, _buffers = sys.argv[3:]
    main(int(sys.argv[1]), int(sys.argv[2]), _name, Path(_cache), msgspec.json.decode(_buffers, type=BufferLayout))
