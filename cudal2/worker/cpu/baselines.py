"""The baseline's side of a comparison: PyTorch's way to an operator on an arena's buffers, in a process of its own.

`Baselines` is the parent's end; `main`, with what it calls, runs in the one long-lived process. They speak the
protocol of `session.py`; orders beyond it come as lines of JSON over a socket, with the arena's files.
"""

import json
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import HarnessFault, Status
from cudal2.worker.cpu.arena import HEADER, INPUTS, OUTPUTS, Arena
from cudal2.worker.cpu.session import COMMAND, DONE, ORDER, READY, REPLY, Side, pipes
from cudal2.worker.sandbox import jail
from cudal2.worker.sandbox.confine import ends_with_parent

FUSED = "torch.fp32"
"""The one that rounds once, whatever follows the product."""
ONE_THREAD = "torch.fp32 on one thread"
"""Nothing to compare with, but a sign of whether the others were given their threads."""
SECONDS = 600.0
"""For importing torch, and for a batch of calls."""
LOADER = "LD_LIBRARY_PATH"
"""The one variable of the caller's that the baselines see: their Python may need it to start. It is keyed."""


def names(problem: Problem) -> tuple[str, ...]:
    """What a user may write: through fp32, and on tensors of the problem's type; see `fp32` and `native`."""
    return FUSED, f"torch.{problem.dtype}"


def environment(threads: int) -> dict[str, str]:
    """All that the baselines' process is told: what a candidate's is, and where Python finds the modules we have.

    Nothing else of the caller's own (ONEDNN_…, MKL_…, KMP_…, MALLOC_…, LD_PRELOAD): it could slow the rival down.
    """
    fixed = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return jail.ENVIRONMENT | fixed | {name: os.environ[name] for name in (LOADER,) if name in os.environ}


def libraries() -> str:
    """What decides how fast the baselines are, beside the processor and their threads."""
    loader = os.environ.get(LOADER)
    return f"torch {torch.__version__}" + (f", {LOADER}={loader}" if loader else "")


class Baselines:
    """A running baseline host. `attach` an arena, `choose` a baseline, then use `side` like a candidate's."""

    def __init__(self, threads: int) -> None:
        command_read, command_write, reply_read, reply_write = pipes()
        self._orders, remote = socket.socketpair()
        fds = (command_read, reply_write, remote.fileno())
        host = [sys.executable, "-m", "cudal2.worker.cpu.baselines", *map(str, fds), str(threads)]
        process = subprocess.Popen(
            [*ends_with_parent(), *host],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(threads),
        )
        for fd in (command_read, reply_write):
            os.close(fd)
        remote.close()
        self._arena: Arena | None = None
        self.side = Side(command_write, reply_read, jail.Jailed(process, process.pid), threads, SECONDS, _fault)
        self.side.receive()
        self.side.freeze()

    def use(self, arena: Arena, name: str) -> Side:
        """Point the host at an arena and one of `names`; returns its Side, stopped.

        Raises HarnessFault where the host has died.
        """
        order = {"problem": msgspec.structs.asdict(arena.problem), "baseline": name}
        order["operators"] = list(operators.__path__)  # wherever this process has them from
        fds = [] if arena is self._arena else [arena.fds[INPUTS], arena.fds[OUTPUTS]]
        self._arena = arena

        try:
            socket.send_fds(self._orders, [json.dumps(order).encode()], fds)
        except OSError as error:
            raise _fault(Status.LAUNCH_ERROR, str(error)) from error
        self.side.order()
        return self.side

    def close(self) -> None:
        self.side.close()
        self._orders.close()


def _fault(status: Status, reason: str) -> HarnessFault:
    return HarnessFault(
        f"the baseline process failed ({status}): {reason}",
        "Look at the messages above; is there enough memory?",
    )


class Slot(msgspec.Struct):
    """The operands of one call, B as the K×N matrix whatever its stored layout."""

    a: torch.Tensor
    b: torch.Tensor
    more: list[torch.Tensor]
    c: torch.Tensor


Calls = Callable[[Slot, Slot], object]
"""One call on a slot, with fp32 copies of its operands to work in."""


def native(problem: Problem) -> Calls:
    """As users call it on tensors of the problem's type. What follows the product may be rounded again."""
    operator = operators.find(problem.epilogue)
    if not operator.flop(problem):
        return lambda slot, wide: torch.matmul(slot.a, slot.b, out=slot.c)
    return lambda slot, wide: slot.c.copy_(operator.torch(slot.a, slot.b, slot.more))


def fp32(problem: Problem) -> Calls:
    """Through fp32: what one writes on a processor whose matmul is slow on 16 bits. It is rounded once.

    It reuses its fp32 copies. With fresh temporaries the allocator's state decides: page faults at every call,
    or copies whose addresses collide in the caches, make the same call up to four times slower.
    """
    operator = operators.find(problem.epilogue)
    alone = not operator.flop(problem)

    def call(slot: Slot, wide: Slot) -> None:
        wide.a.copy_(slot.a)
        wide.b.copy_(slot.b)
        for copy, given in zip(wide.more, slot.more):
            copy.copy_(given)
        if alone:
            slot.c.copy_(torch.matmul(wide.a, wide.b, out=wide.c))
        else:
            slot.c.copy_(operator.torch(wide.a, wide.b, wide.more))

    return call


def wide_copies(slot: Slot) -> Slot:
    """fp32 tensors like these, strides included, each off the others by an odd number of cache lines."""
    copies = []
    for number, like in enumerate((slot.a, slot.b, *slot.more, slot.c)):
        room = torch.zeros(like.numel() + 4096)
        start = (-room.data_ptr() // 4 % 1024) + 16 * (17 * number + 1)
        copies.append(room.as_strided(like.shape, like.stride(), start))
    a, b, *more, c = copies
    return Slot(a, b, more, c)


BASELINES = {"torch.fp32": (fp32, 0), "torch.fp32 on one thread": (fp32, 1)}
"""Each with its number of threads, 0 for as many as the host was told; any other name is `native` on all of them."""


def views(problem: Problem, inputs: int, outputs: int) -> list[Slot]:
    """The operands of every slot."""
    # Populated, as for a candidate: a page fault at each first touch made torch look up to 10% slower.
    populated = mmap.MAP_SHARED | mmap.MAP_POPULATE
    read, write = (np.frombuffer(mmap.mmap(fd, 0, populated), dtype=np.uint8) for fd in (inputs, outputs))
    operands, dtype = operators.operands(problem), getattr(torch, problem.type.torch)
    count, each = int(read[:8].view(np.uint64)[0]), len(operands)
    calls = read[HEADER : HEADER + 8 * each * count].view(np.uint64).reshape(count, each).tolist()

    def slot(places: list[int]) -> Slot:
        found = []
        for operand, at in zip(operands, places):
            data = write if operand.role == "output" else read
            bits = torch.from_numpy(data[at : at + 2 * operand.elements].view(np.int16))
            found.append(bits.view(dtype).view(operand.shape))
        a, b, *more, c = found
        return Slot(a, b.T if problem.layout == "tn" else b, more, c)

    return [slot(places) for places in calls]


def main(command_fd: int, reply_fd: int, socket_fd: int, threads: int) -> None:
    orders = socket.socket(fileno=socket_fd)
    slots: list[Slot] = []
    call: Calls
    os.write(reply_fd, REPLY.pack(READY, 0, 0))
    while data := os.read(command_fd, COMMAND.size):
        first, count = COMMAND.unpack(data)
        if (first, count) == ORDER:  # it waits on the socket
            text, fds, _, _ = socket.recv_fds(orders, 4096, 2)
            order = json.loads(text)
            operators.__path__[:] = order["operators"]
            problem = Problem(**order["problem"])
            if fds:
                slots = views(problem, *fds)
                wide = wide_copies(slots[0])
                for fd in fds:
                    os.close(fd)
            baseline, number = BASELINES.get(order["baseline"], (native, 0))
            call = baseline(problem)
            torch.set_num_threads(number or threads)
        else:
            for slot in slots[first : first + count]:
                call(slot, wide)
        os.write(reply_fd, REPLY.pack(DONE, 0, 0))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
