"""The baseline's side of a comparison: torch.matmul on an arena's buffers, in a process of its own.

Speaks the protocol of `session.py`. Orders beyond it come as lines of JSON over a socket, with the arena's files.
"""

import json
import mmap
import os
import socket
import sys

import numpy as np
import torch

from cudal2.worker.cpu.session import COMMAND, DONE, ORDER, READY, REPLY

Matrices = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def fp16(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, wide: Matrices) -> None:
    """torch.matmul as users call it on half-precision tensors."""
    torch.matmul(a, b, out=c)


def fp32(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, wide: Matrices) -> None:
    """torch.matmul through fp32: what one writes on a processor whose fp16 matmul is slow.

    It reuses its fp32 copies. With fresh temporaries the allocator's state decides: page faults at every call,
    or copies whose addresses collide in the caches, make the same call up to four times slower.
    """
    a32, b32, c32 = wide
    a32.copy_(a)
    b32.copy_(b)
    c.copy_(torch.matmul(a32, b32, out=c32))


def wide_copies(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Matrices:
    """fp32 tensors like these, strides included, each off the others by an odd number of cache lines."""
    copies = []
    for number, like in enumerate((a, b, c)):
        room = torch.zeros(like.numel() + 4096)
        start = (-room.data_ptr() // 4 % 1024) + 16 * (17 * number + 1)
        copies.append(room.as_strided(like.shape, like.stride(), start))
    return copies[0], copies[1], copies[2]


BASELINES = {"torch.fp32": (fp32, 0), "torch.fp16": (fp16, 0), "torch.fp32 on one thread": (fp32, 1)}
"""Each with its number of threads, 0 for as many as the host was told."""


def views(order: dict, inputs: int, outputs: int) -> list[Matrices]:
    """(A, B, C) of every slot, B as the K×N matrix whatever its stored layout."""
    m, n, k = order["mnk"]
    nn = order["layout"] == "nn"
    # Populated, as for a candidate: a page fault at each first touch made torch look up to 10% slower.
    populated = mmap.MAP_SHARED | mmap.MAP_POPULATE
    read, write = (np.frombuffer(mmap.mmap(fd, 0, populated), dtype=np.uint8) for fd in (inputs, outputs))
    count = int(read[:8].view(np.uint64)[0])
    calls = read[16 : 16 + 24 * count].view(np.uint64).reshape(count, 3).tolist()

    def matrix(data: np.ndarray, at: int, rows: int, columns: int) -> torch.Tensor:
        return torch.from_numpy(data[at : at + 2 * rows * columns].view(np.float16).reshape(rows, columns))

    def right(at: int) -> torch.Tensor:
        return matrix(read, at, k, n) if nn else matrix(read, at, n, k).T

    return [(matrix(read, a, m, k), right(b), matrix(write, c, m, n)) for a, b, c in calls]


def main(command_fd: int, reply_fd: int, socket_fd: int, threads: int) -> None:
    orders = socket.socket(fileno=socket_fd)
    slots: list[Matrices] = []
    function = fp32
    os.write(reply_fd, REPLY.pack(READY, 0, 0))
    while data := os.read(command_fd, COMMAND.size):
        first, count = COMMAND.unpack(data)
        if (first, count) == ORDER:  # it waits on the socket
            text, fds, _, _ = socket.recv_fds(orders, 4096, 2)
            order = json.loads(text)
            if fds:
                slots = views(order, *fds)
                wide = wide_copies(*slots[0])
                for fd in fds:
                    os.close(fd)
            function, number = BASELINES[order["baseline"]]
            torch.set_num_threads(number or threads)
        else:
            for a, b, c in slots[first : first + count]:
                function(a, b, c, wide)
        os.write(reply_fd, REPLY.pack(DONE, 0, 0))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
