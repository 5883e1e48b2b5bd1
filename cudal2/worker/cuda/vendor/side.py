"""The baseline's side of a comparison: the vendor's calls, on the memory that the candidate reads too.

Where in a GPU's memory matrices lie can make 3% of a short product, for as long as they lie there. So each side finds
its inputs in the same memory when its turn has come (`lay`): B in the layout of whoever is next. Their originals and
the baseline's outputs, on which a verdict rests, are this process's alone, and `unharmed` says that what the baseline
read was what these say.

`Mirror` is that side in a process of its own, on the shared buffers: the A side of an A/A measurement. It takes the
candidate's place: another process and another context than the referee's. What is then left between the two is the
harness.
"""

import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.records import HarnessFault
from cudal2.worker import limits, verify
from cudal2.worker.cache import Cache
from cudal2.worker.cuda.memory import SharedMemory, imported
from cudal2.worker.cuda.vendor import split
from cudal2.worker.cuda.vendor.baselines import Vendor
from cudal2.worker.cuda.vendor.replay import Calls
from cudal2.worker.gpu.arena import views
from cudal2.worker.gpu.buffers import BufferLayout
from cudal2.worker.gpu.history import History, Touches
from cudal2.worker.sandbox.confine import ends_with_parent

COMMAND, REPLY = struct.Struct("=II?d"), struct.Struct("=d")
ROWS = len(History.__struct_fields__) - 1
"""A history is sent as 64-bit numbers: its order, then so many rows, of one number for each touch."""
READY = b"+"


class BaselineSide:
    """Baselines on sets of input operands `given` [sets, …] and of outputs c [sets,M,N], whose calls are captured once.

    `originals` are what `lay` puts into the memory of `given`, which holds B in one layout at a time. `products`
    [sets,M,N] in fp32 are those of `restate`, None before. Histories keep elements of outputs in `log`, or where nobody
    reads them.
    """

    def __init__(
        self,
        vendor: Vendor,
        buffers: BufferLayout,
        given: Sequence[Tensor],
        c: Tensor,
        log: Tensor | None = None,
        originals: Sequence[Tensor] = (),
    ) -> None:
        self.vendor, self.problem, self.c, self._originals = vendor, buffers.problem, c, tuple(originals)
        self._log = torch.empty(buffers.log_words, dtype=torch.int16, device=c.device) if log is None else log
        self._inputs: dict[str, tuple[Tensor, ...]] = {buffers.problem.layout: tuple(given)}
        self.products: Tensor | None = None
        self._calls: dict[str, Calls] = {}

    def inputs(self, layout: str) -> tuple[Tensor, ...]:
        """Where the inputs of every set are, B stored in `layout`; they are there after `lay`."""
        if layout not in self._inputs:
            a, b, *more = self._inputs[self.problem.layout]
            sets, rows, columns = b.shape
            turned = b.as_strided((sets, columns, rows), (b.stride(0), rows, 1))
            self._inputs[layout] = a, turned, *more
        return self._inputs[layout]

    def lay(self, layout: str, window: slice) -> None:
        """Put the inputs of these sets where calls find them, B in that layout."""
        for place, original in self._pairs(layout, window):
            place.copy_(original)

    def unharmed(self, layout: str, window: slice) -> bool:
        """Whether they are still there."""
        return all(torch.equal(place, original) for place, original in self._pairs(layout, window))

    def _pairs(self, layout: str, window: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """The memory of each input of these sets, and its original, as 16-bit integers."""
        for number, (place, original) in enumerate(zip(self.inputs(layout), self._originals, strict=True)):
            turned = number == 1 and layout != self.problem.layout
            words = original[window].view(torch.int16)
            yield place[window].view(torch.int16), words.transpose(1, 2) if turned else words

    def sets(self, layout: str) -> list[tuple[Tensor, ...]]:
        """(A, B, what more there is, C) of every set."""
        return list(zip(*self.inputs(layout), self.c))

    def run(self, name: str, history: History) -> float:
        """Seconds on the device's clock of a history's calls with baseline `name`."""
        if name not in self._calls:
            self._calls[name] = self.vendor.calls(name, self.problem, self.sets(split(name)[1]))
        return self._calls[name].run(history.order, self._touches(name, history))

    def readings(self) -> dict[str, Callable[[History], float]]:
        """By how it is launched: what gives the seconds that `run` gives, of calls that only read and write."""
        given = self._inputs[self.problem.layout]

        def seconds(calls: Calls, history: History) -> float:
            return calls.run(history.order, history.touches((*given, self.c), self._log))

        made = self.vendor.readings(self.sets(self.problem.layout))
        return {launch: partial(seconds, calls) for launch, calls in made.items()}

    def host_seconds(self, name: str, history: History, gap: float) -> float:
        """Seconds on the host's clock of a history's calls, one by one, with baseline `name`, all together."""
        return self._on_host(name, history.order, gap, self._touches(name, history))

    def host_seconds_untouched(self, name: str, count: int, gap: float) -> float:
        """The same of calls on the first `count` sets, with nothing between them."""
        return self._on_host(name, range(count), gap, None)

    def _on_host(self, name: str, order: Sequence[int], gap: float, touches: Touches | None) -> float:
        sets = self.sets(split(name)[1])
        chosen = [sets[number] for number in order]
        return sum(self.vendor.host_seconds(name, self.problem, chosen, len(chosen), gap, touches))

    def _touches(self, name: str, history: History) -> Touches:
        """A history's touches of the inputs that this baseline reads, and of its outputs."""
        layout = split(name)[1]
        a, b, *more = self.inputs(layout)
        own = b if layout == self.problem.layout else b.transpose(1, 2)
        return history.touches((a, own, *more, self.c), self._log)

    def restate(self, window: slice) -> None:
        """Where an operator follows the product: write what it is over the outputs of these sets, rounded once, and
        keep the products. The inputs are as each set's own call found them.

        A library may finish in a second kernel, on a product that it has rounded, or be off elsewhere; its time counts
        then, and not its result.
        """
        if not limits.finishing(self.problem):
            return
        given, finish = self._originals, operators.find(self.problem.epilogue).finish
        if self.products is None:
            self.products = torch.empty(self.c.shape, dtype=torch.float32, device=self.c.device)
        parts = [tensor[window].split(self._together) for tensor in (*given, self.products, self.c)]
        for a, b, *more, product, c in zip(*parts):
            product.copy_(_products(a, b.transpose(1, 2) if self.problem.layout == "tn" else b))
            c.copy_(finish(product, [_broadcasting(operand).float() for operand in more]))

    @property
    def _together(self) -> int:
        """Sets that `restate` looks at together, which bounds its temporaries."""
        return max(1, verify.BLOCK // (self.problem.m * self.problem.n))


def _broadcasting(operand: Tensor) -> Tensor:
    """[sets, …] so that it broadcasts against [sets,M,N]."""
    return operand if operand.dim() == 3 else operand[:, None]


def _products(a: Tensor, b: Tensor) -> Tensor:
    """A [sets,M,K] times B [sets,K,N], in fp32 from sums in fp32."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


class Mirror:
    """Baseline `name`, of the layout that `memory` is in, in another process; a context manager. HarnessFault where
    the process fails."""

    def __init__(self, name: str, memory: SharedMemory, buffers: BufferLayout, cache: Cache) -> None:
        self._socket, remote = socket.socketpair()
        words = (remote.fileno(), memory.fd, name, cache.root, msgspec.json.encode(buffers).decode())
        command = [*ends_with_parent(), sys.executable, "-m", "cudal2.worker.cuda.vendor.side", *map(str, words)]
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
    memory = imported(memory_fd, buffers.bytes)
    *given, c = views(memory, buffers)
    side = BaselineSide(vendor, buffers, given, c, memory[: buffers.bytes // 2][-buffers.log_words :])
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
    number, operand, row, column, bits, changes, kept = numbers[calls:].reshape(ROWS, -1)
    written = bits.astype(np.uint16), changes.astype(bool), kept
    return History(numbers[:calls].tolist(), number, operand, row, column, *written)


if __name__ == "__main__":
    _name, _cache, _buffers = sys.argv[3:]
    main(int(sys.argv[1]), int(sys.argv[2]), _name, Path(_cache), msgspec.json.decode(_buffers, type=BufferLayout))
