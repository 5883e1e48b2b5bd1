"""What the referee does with the buffers that runners map too: fill, poison, and see what became of them.

Everything that a verdict rests on (inputs, guard bands, the baseline's result) is compared with tensors that only this
process maps: the GPU's MMU keeps candidates away from them. Nothing here needs a GPU: the memory is a tensor.
"""

import torch
from torch import Tensor

from cudal2.contract import CUDA_CONTRACT
from cudal2.worker import inputs
from cudal2.worker.cuda.buffers import GUARD, BufferLayout
from cudal2.worker.cuda.history import History, Touches

Matrices = tuple[Tensor, Tensor, Tensor]
"""A [sets,M,K], B [sets,*b_shape] and C [sets,M,N], float16."""


def matrices(memory: Tensor, buffers: BufferLayout) -> Matrices:
    """Views of int16 memory laid out so."""
    p, step = buffers.problem, buffers.stride // 2

    def view(offset: int, shape: tuple[int, int]) -> Tensor:
        size, strides = (buffers.sets, *shape), (step, shape[1], 1)
        return memory.view(torch.float16).as_strided(size, strides, offset // 2)

    return view(buffers.a, (p.m, p.k)), view(buffers.b, p.b_shape), view(buffers.c, (p.m, p.n))


def private(buffers: BufferLayout, device: torch.device) -> Matrices:
    """`matrices` in memory of this process alone, at the same distances: a pass over them costs what it costs there."""
    return matrices(torch.empty(buffers.workspace // 2, dtype=torch.int16, device=device), buffers)


class Arena:
    """Sets of A, B and C and a workspace in the shared int16 `memory`, laid out as `buffers` says.

    `a`, `b`, `c` are the shared matrices; `inputs` are the private originals of a and b, `reference` is where the
    baseline's C goes; `powers` [sets,K] are those of two by which `fill` scaled the columns of A, and divided the rows
    of B. Whatever lies between and behind the matrices and is not workspace holds secret patterns.
    """

    def __init__(self, buffers: BufferLayout, memory: Tensor, rng: torch.Generator) -> None:
        self.buffers, self.problem, self.memory, self._rng = buffers, buffers.problem, memory, rng
        self.a, self.b, self.c = matrices(memory, buffers)
        a, b, self.reference = private(buffers, memory.device)
        self.inputs = (a, b)
        self.powers = torch.zeros(buffers.sets, self.problem.k, dtype=torch.int8, device=memory.device)
        behind = buffers.sets * buffers.stride + GUARD
        self._tail = memory[behind // 2 : buffers.bytes // 2]
        self._workspace = (buffers.workspace - behind) // 2  # where it begins in the tail
        self._guards = self._guard_views(memory)
        self._secrets = [_nan_patterns(view.shape, rng) for view in (*self._guards, self._tail)]
        self.inputs_given = 0
        """How often inputs were put in: where it is as it was, so are they, but for a window's history."""
        self.restore()

    def _guard_views(self, memory: Tensor) -> list[Tensor]:
        """[sets, width] views of the bands before A, B and C and after C; the last set's successor has one more."""
        at, p, stride = self.buffers, self.problem, self.buffers.stride // 2
        after = at.a + 2 * p.m * p.k, at.b + 2 * p.k * p.n, at.c + 2 * p.m * p.n
        ends = zip((0, *after), (GUARD, at.b, at.c, at.stride))
        return [
            memory.as_strided((at.sets + (start == 0), (end - start) // 2), (stride, 1), start // 2)
            for start, end in ends
        ]

    def settle(self) -> None:
        """Wait for everything that was enqueued here, before another process looks."""
        if self.memory.is_cuda:
            torch.cuda.synchronize()

    def restore(self) -> None:
        """Put back what an earlier candidate may have overwritten, or did not live to see changed."""
        for view, secret in zip((*self._guards, self._tail), self._secrets):
            view.copy_(secret)
        for original, shared in zip(self.inputs, (self.a, self.b)):
            shared.copy_(original)

    def fill(self, window: slice) -> None:
        """Fresh normals of uneven scale in the inputs of these sets, and in their private originals."""
        self.inputs_given += 1
        a, b = (original[window] for original in self.inputs)
        self.powers[window] = inputs.fill_uneven(self._rng, a, b, self.problem)
        self.a[window], self.b[window] = a, b

    def put(self, number: int, a: Tensor, b: Tensor) -> None:
        """These inputs in one set."""
        self.inputs_given += 1
        for original, shared, value in zip(self.inputs, (self.a, self.b), (a, b)):
            original[number] = value
            shared[number] = value

    def poison(self, workspace: int) -> None:
        """NaN in every output, and random ones in the `workspace` bytes asked for but for the semaphores."""
        inputs.poison(self.c)
        used = self._tail[self._workspace : self._workspace + workspace // 2]
        used.copy_(_nan_patterns(used.shape, self._rng))
        used[: CUDA_CONTRACT.semaphores // 2] = 0

    def touches(self, history: History) -> Touches:
        """A history's touches, in bytes from where the memory begins."""
        return history.touches(self.a, self.b, self.memory.data_ptr())

    def inputs_intact(self) -> bool:
        """Whether A and B of every set hold what their private originals do: memory that is not asked for, too."""
        return all(
            torch.equal(shared.view(torch.int16), original.view(torch.int16))
            for shared, original in zip((self.a, self.b), self.inputs)
        )

    def others_unwritten(self, window: slice) -> bool:
        """Whether no output but those of these sets was written since `poison`."""
        others = (self.c[: window.start], self.c[window.stop :])
        return not any(bool((c.view(torch.int16) != inputs.POISON).any()) for c in others if len(c))

    def guard_finding(self) -> str:
        """Which band beside a matrix was written; empty where none was."""
        for name, view, secret in zip(("before A", "after A", "after B", "after C"), self._guards, self._secrets):
            if not torch.equal(view, secret):
                number, place = (view != secret).nonzero()[0].tolist()
                return f"wrote {name} of set {number}, element {place} of the band of {view.shape[1]}"
        return ""

    def workspace_finding(self, workspace: int) -> str:
        """What a call left wrong in the workspace and around it; empty where nothing."""
        start, end, secret = self._workspace, self._workspace + workspace // 2, self._secrets[-1]
        if bool(self._tail[start : min(end, start + CUDA_CONTRACT.semaphores // 2)].any()):
            return "left the semaphores at the head of the workspace non-zero"
        outside = (slice(None, start), slice(end, None))
        intact = all(torch.equal(self._tail[part], secret[part]) for part in outside)
        return "" if intact else "wrote beyond the workspace it asked for"


def _nan_patterns(shape: torch.Size, rng: torch.Generator) -> Tensor:
    """Random fp16 NaNs as int16: 0x7c01 to 0x7fff."""
    return torch.randint(0x7C01, 0x8000, shape, generator=rng, device=rng.device, dtype=torch.int16)
