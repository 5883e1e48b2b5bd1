"""The buffers of one problem: shared memory that the parent owns and a candidate sees through guard pages.

Two memory files. `inputs` (read-only for the candidate) holds the table of calls and every input operand; `outputs`
every C. A slot is one of each operand: A, B, what more the operator is given, and C. The first GUARDED slots lie
between pages nobody may touch: slot 0 ends where the page after it starts, slot 1 starts where the page before it ends,
so that one step too far in either direction faults. The other slots are packed, with a canary band after each C, and
there are enough of them that going round them leaves no cache warm. The workspace is each candidate's own
(`candidate.py`).
"""

import mmap
import os
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from cudal2 import operators
from cudal2.contract import CPU_CONTRACT
from cudal2.problem import Problem
from cudal2.records import HarnessFault
from cudal2.worker import inputs

PAGE = 4096
GUARDED = 2
ROTATION_BYTES = 64 << 20
"""Packed slots together are at least this large: more than the last-level caches of most machines."""
PACKED_LIMIT = 128 << 20
"""No packed slots where one slot alone is larger; the guarded ones then serve for timing as well."""
MAX_SLOTS = 4096
HEADER = 24
"""Bytes before the table of calls: how many calls, guards and operands there are."""
SHORT = 256
"""Rows of fewer elements take NumPy longer to begin with than to add."""
CANARY = 0xA7
SIGN = np.uint16(1 << 15)
INPUTS, OUTPUTS = range(2)


def round_up(size: int, to: int) -> int:
    return -(-size // to) * to


def _fill(target: np.ndarray, pool: np.ndarray, signs: np.ndarray, rng: np.random.Generator) -> None:
    """Copy windows of `pool` over all of `target` (16-bit words), each from a secret multiple of 16 bytes, and with the
    signs of another secret place: windows overlap, and no row may occur twice."""
    done, window = 0, len(pool) // 2
    while done < len(target):
        size = min(window, len(target) - done)
        start = int(rng.integers((len(pool) - size) // 8)) * 8
        other = int(rng.integers(len(pool) - size))
        np.bitwise_xor(pool[start : start + size], signs[other : other + size], out=target[done : done + size])
        done += size


def _scale(line: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A row or a column for a matrix of that shape: spread over all of it where rows are short, which takes NumPy a
    third of the time then; without its rows, as one."""
    spread = np.broadcast_to(line, shape)
    return spread.reshape(-1) if shape[1] < SHORT else spread


class Arena:
    """Slots of one problem, with views of them for the parent.

    `given(i)` are the input operands of slot i in their stored shapes, `c(i)` is its output. Raises HarnessFault where
    the machine has not the memory.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.operands = operators.operands(problem)
        self._shapes = tuple(inputs.as_matrix(operand.shape) for operand in self.operands)
        self._sizes = tuple(2 * operand.elements for operand in self.operands)
        packed, each = 0, sum(self._sizes)
        if each <= PACKED_LIMIT:
            packed = min(MAX_SLOTS, max(4, ROTATION_BYTES // each))
        self.count = GUARDED + packed
        self.first_timed = GUARDED if packed else 0
        self.calls = np.zeros((self.count, len(self.operands)), dtype=np.uint64)
        self._guards: list[tuple[int, int, int]] = []
        self._bands: list[tuple[int, int]] = []  # canary bytes of the outputs file: offset, length
        sizes = self._lay_out()
        self.fds, self._maps = [], []
        try:
            for name, size in zip(("inputs", "outputs"), sizes):
                fd = os.memfd_create(name)
                self.fds.append(fd)
                os.ftruncate(fd, size)
                self._maps.append(mmap.mmap(fd, size))
        except OSError as error:
            self.close()
            raise HarnessFault(
                f"no memory for {self.count} buffer sets of {problem.name}: {error}",
                "Ask for a smaller problem",
            ) from error
        self._bytes = [np.frombuffer(memory, dtype=np.uint8) for memory in self._maps]
        self._write_header()
        self.wipe_outputs()

    def _lay_out(self) -> tuple[int, int]:
        """Fill in calls, guards and bands; returns the sizes of the inputs and outputs files."""
        header = HEADER + self.calls.nbytes + 24 * 2 * len(self.operands) * GUARDED
        ends = [round_up(header, PAGE), 0]
        for slot in range(self.count):
            for matrix, size in enumerate(self._sizes):
                file = self._file(matrix)
                place = self._guarded if slot < GUARDED else self._packed
                self.calls[slot, matrix], ends[file] = place(file, ends[file], size, at_end=slot == 0)
        return round_up(ends[INPUTS], PAGE), round_up(ends[OUTPUTS], PAGE)

    def _guarded(self, file: int, start: int, size: int, at_end: bool) -> tuple[int, int]:
        start = round_up(start, PAGE)
        inside = round_up(size, PAGE)
        offset = start + PAGE + (inside - round_up(size, CPU_CONTRACT.alignment) if at_end else 0)
        self._guards += [(file, start, PAGE), (file, start + PAGE + inside, PAGE)]
        if file == OUTPUTS:
            self._bands += [
                (start + PAGE, offset - start - PAGE),
                (offset + size, start + PAGE + inside - offset - size),
            ]
        return offset, start + inside + 2 * PAGE

    def _packed(self, file: int, start: int, size: int, at_end: bool) -> tuple[int, int]:
        offset = round_up(start, CPU_CONTRACT.alignment)
        end = round_up(offset + size, CPU_CONTRACT.alignment) + CPU_CONTRACT.alignment
        if file == OUTPUTS:
            self._bands.append((offset + size, end - offset - size))
        return offset, end

    def _write_header(self) -> None:
        header = np.array([self.count, len(self._guards), len(self.operands)], dtype=np.uint64)
        guards = np.array(self._guards, dtype=np.uint64)
        data = b"".join(part.tobytes() for part in (header, self.calls, guards))
        self._bytes[INPUTS][: len(data)] = np.frombuffer(data, dtype=np.uint8)

    def _span(self, matrix: int, slot: int) -> np.ndarray:
        offset, size = int(self.calls[slot, matrix]), self._sizes[matrix]
        return self._bytes[self._file(matrix)][offset : offset + size]

    def _file(self, matrix: int) -> int:
        return OUTPUTS if matrix + 1 == len(self.operands) else INPUTS

    def _typed(self, data: np.ndarray) -> Tensor:
        return torch.from_numpy(data.view(np.int16)).view(inputs.element(self.problem))

    def _view(self, matrix: int, slot: int) -> Tensor:
        return self._typed(self._span(matrix, slot)).view(self.operands[matrix].shape)

    def given(self, slot: int) -> tuple[Tensor, ...]:
        return tuple(self._view(matrix, slot) for matrix in range(len(self.operands) - 1))

    def c(self, slot: int) -> Tensor:
        return self._view(len(self.operands) - 1, slot)

    def fill_inputs(self, first: int, count: int, pool: Tensor, powers: Sequence[np.ndarray]) -> None:
        """Overwrite the inputs of packed or guarded slots with windows of `pool`, each at a secret place.

        `powers` (`inputs.uneven_powers`) are added to the bits of each. A has a half of the pool to itself: a row that
        met itself in B would be a sum of squares, a hundred times as large as others and too large for one in fp16.
        """
        normals, rng = inputs.words(pool), np.random.default_rng(secrets.randbits(128))
        scales = [_scale(power, shape) for power, shape in zip(powers, self._shapes)]
        half = len(normals) // 2
        if max(self._sizes[:-1]) > half:  # in bytes: more than half of a half
            signs = normals & SIGN
            for slot in range(first, first + count):
                for matrix, scale in enumerate(scales):
                    target = self._span(matrix, slot).view(np.uint16)
                    _fill(target, normals, signs, rng)
                    target.reshape(scale.shape)[:] += scale
            return
        # Thousands of small slots: all places are drawn at once.
        sizes = [size // 2 for size in self._sizes[:-1]]
        places = (self.calls[first : first + count, :-1] // 2).tolist()
        begins = [0] + [half] * (len(sizes) - 1)
        room = [(half - size) // 8 for size in sizes]
        starts = (rng.integers(room, size=(count, len(sizes))) * 8 + begins).tolist()
        target = self.words(INPUTS)
        for matrix, (scale, size) in enumerate(zip(scales, sizes)):
            for place, start in zip(places, starts):
                to, start_ = place[matrix], start[matrix]
                source = normals[start_ : start_ + size].reshape(scale.shape)
                np.add(source, scale, out=target[to : to + size].reshape(scale.shape))

    def outputs(self, first: int, count: int) -> list[Tensor]:
        """Views that together hold the C matrices of these slots, each [slots, M, N]."""
        if first < GUARDED:
            return [self.c(slot)[None] for slot in range(first, first + count)]
        size = self._sizes[-1]
        stride = round_up(size, CPU_CONTRACT.alignment) + CPU_CONTRACT.alignment
        start = int(self.calls[first, -1])
        m, n = self._shapes[-1]
        data = self._bytes[OUTPUTS][start : start + stride * (count - 1) + size]
        return [self._typed(data).as_strided((count, m, n), (stride // 2, n, 1))]

    def words(self, file: int) -> np.ndarray:
        """All of INPUTS or OUTPUTS as 16-bit words; a matrix begins at half its offset in `calls`."""
        return self._bytes[file].view(np.uint16)

    def element(self, slot: int, word: int) -> tuple[int, int, int]:
        """Of a word of the inputs that lies in this slot: the operand's number, row and column as it is stored."""
        starts = (self.calls[slot, :-1] // 2).tolist()
        matrix = bisect_right(starts, word) - 1
        row, column = divmod(word - starts[matrix], self._shapes[matrix][1])
        return matrix, row, column

    def canaries_intact(self) -> bool:
        """Whether every byte between and around the C matrices is as the parent left it."""
        outputs = self._bytes[OUTPUTS]
        return all((outputs[offset : offset + length] == CANARY).all() for offset, length in self._bands)

    def wipe_outputs(self) -> None:
        """For the next candidate: whole bands, and nothing of what the one before it wrote."""
        self._bytes[OUTPUTS][:] = CANARY

    def files_for_candidate(self) -> tuple[int, int]:
        """Fresh descriptors of the two files, `inputs` read-only for good; the caller closes them."""
        return os.open(f"/proc/self/fd/{self.fds[INPUTS]}", os.O_RDONLY), os.dup(self.fds[OUTPUTS])

    @property
    def bytes(self) -> int:
        """Address space that mapping both files takes."""
        return sum(len(memory) for memory in self._maps)

    def close(self) -> None:
        """Give the memory back; views taken earlier must be gone."""
        self._bytes = []
        for memory in self._maps:
            with suppress(BufferError):
                memory.close()
        for fd in self.fds:
            os.close(fd)
        self.fds, self._maps = [], []
