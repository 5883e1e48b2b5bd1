"""Kernels that only read a call's inputs once and write as many bytes as C has: `reading.cu`, compiled on first use.

How they are launched decides how fast they are. Which launch is best depends on the size, so there are several.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import torch
from cuda.bindings import driver
from torch import Tensor

from cudal2.records import digest
from cudal2.target import Target
from cudal2.worker.build import artefact, trusted
from cudal2.worker.cuda.compile import toolchain
from cudal2.worker.cuda.memory import ask
from cudal2.worker.cuda.vendor.replay import Enqueue

PIECE, MOST = 16, 4
"""Bytes of a load, and inputs that a kernel may have: mirrors reading.cu."""
ON_THEIR_WAY = 8192
"""Pieces that the threads of a multiprocessor load at a time at most: half of its registers hold them."""
NEVER = 2**32 - 1


class Shape(msgspec.Struct, frozen=True):
    """How a reading kernel is launched: blocks a multiprocessor, threads a block, loads on their way of each thread."""

    blocks: int
    threads: int
    loads: int

    @property
    def name(self) -> str:
        return f"{self.blocks}x{self.threads}x{self.loads}"


_ALL = (Shape(*each) for each in product((1, 2, 3, 4), (256, 512, 1024), (4, 8, 16)))
SHAPES = tuple(shape for shape in _ALL if shape.blocks * shape.threads * shape.loads <= ON_THEIR_WAY)
"""In all of them every block is there at once."""


class Operands(ctypes.Structure):
    """Mirrors that of reading.cu."""

    _fields_ = [
        *(("origin", ctypes.c_uint64 * MOST), ("first", ctypes.c_uint32 * MOST)),
        *(("read", ctypes.c_uint32), ("written", ctypes.c_uint32), ("c", ctypes.c_uint64), ("found", ctypes.c_uint64)),
    ]


def operands(given: Sequence[Tensor], c: Tensor, checksum: int) -> Operands:
    """What a kernel is told of one call. Raises ValueError where there are too many inputs, or one is no whole number
    of pieces."""
    if len(given) > MOST:
        raise ValueError(f"{len(given)} inputs: the kernels that only read know {MOST} at most (reading.cu)")
    call, number = Operands(first=(NEVER,) * MOST, c=c.data_ptr(), written=_pieces(c), found=checksum), 0
    for which, tensor in enumerate(given):
        call.first[which], call.origin[which] = number, tensor.data_ptr() - PIECE * number
        number += _pieces(tensor)
    call.read = number
    return call


def _pieces(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    if size % PIECE or tensor.data_ptr() % PIECE:
        raise ValueError(f"an operand of {size} bytes at {tensor.data_ptr():#x}: want multiples of {PIECE}")
    return size // PIECE


def cubin(target: Target) -> bytes:
    """The kernels, compiled for a target. Raises HarnessFault where they cannot be."""
    tools, source = toolchain.find(), Path(__file__).with_suffix(".cu")
    key = digest(tools.version, tools.host_version, *target.flags, source.read_text())[:16]

    def make(folder: Path) -> None:
        trusted([*tools.command, "-cubin", *target.flags, str(source), "-o", str(folder / "reading.cubin")])

    return (artefact(f"reading-{key}", make) / "reading.cubin").read_bytes()


class Reader:
    """The kernels in the current context, for as long as the process lives."""

    def __init__(self, target: Target, multiprocessors: int) -> None:
        self._multiprocessors = multiprocessors
        module = ask(driver.cuModuleLoadData(cubin(target)))
        self._functions = {
            shape: ask(driver.cuModuleGetFunction(module, f"read_{shape.threads}_{shape.loads}".encode()))
            for shape in SHAPES
        }

    def enqueue(self, shape: Shape, checksum: int = 0) -> Enqueue:
        """What enqueues one call of that shape on a set's tensors, on torch's current stream. Where there is an address
        `checksum`, 32 bits there are changed by the xor of all words that were read; not for what is timed."""
        return partial(self._enqueue, shape, checksum)

    def _enqueue(self, shape: Shape, checksum: int, *tensors: Tensor) -> None:
        call = operands(tensors[:-1], tensors[-1], checksum)
        needed = -(-max(call.read, call.written) // shape.threads)
        grid = min(shape.blocks * self._multiprocessors, needed)
        where = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        stream = torch.cuda.current_stream().cuda_stream
        ask(
            driver.cuLaunchKernel(
                *(self._functions[shape], grid, 1, 1, shape.threads, 1, 1, 0, stream, ctypes.addressof(where), 0)
            )
        )
