"""The baseline's side of a comparison: PyTorch's way to an operator on an arena's buffers, in a process of its own.

Speaks the protocol of `session.py`. Orders beyond it come as lines of JSON over a socket, with the arena's files.
"""

import json
import mmap
import os
import socket
import sys
from collections.abc import Callable

import msgspec
import numpy as np
import torch

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.worker.cpu.arena import HEADER
from cudal2.worker.cpu.session import COMMAND, DONE, ORDER, READY, REPLY


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
