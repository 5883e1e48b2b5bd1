"""What the referee does with the buffers that runners map too: fill, poison, and see what became of them.

Everything that a verdict rests on (inputs, guard bands, the baseline's result) is compared with tensors that only this
process maps: the GPU's MMU keeps candidates away from them. Nothing here needs a GPU: the memory is a tensor.
`check_calls` asks of single calls of a recorded launcher whether they are right, with all around them unharmed.
"""

from collections.abc import Sequence
from functools import cache
from itertools import cycle
from typing import Protocol

import torch
from torch import Tensor

from cudal2 import operators
from cudal2.contract import CUDA_CONTRACT
from cudal2.records import Status
from cudal2.worker import inputs, outcome
from cudal2.worker.gpu.buffers import GUARD, BufferLayout
from cudal2.worker.gpu.history import History, Touches
from cudal2.worker.outcome import CandidateFailed, Outcome

OUTGROWS = 4
"""So many times the L2 is read to empty it of all else."""


def views(memory: Tensor, buffers: BufferLayout) -> tuple[Tensor, ...]:
    """Each operand [sets,*shape] of int16 memory laid out so, in the problem's type."""
    problem, step = buffers.problem, buffers.stride // 2

    def view(offset: int, shape: tuple[int, ...]) -> Tensor:
        inner = torch.empty(shape, device="meta").stride()
        elements = memory.view(inputs.element(problem))
        return elements.as_strided((buffers.sets, *shape), (step, *inner), offset // 2)

    return tuple(view(at, one.shape) for at, one in zip(buffers.offsets, operators.operands(problem), strict=True))


def private(buffers: BufferLayout, device: torch.device) -> tuple[Tensor, ...]:
    """`views` of memory of this process alone, at the same distances: a pass over them costs what it costs there."""
    return views(torch.empty(buffers.workspace // 2, dtype=torch.int16, device=device), buffers)


@cache
def elsewhere(device: torch.device) -> Tensor:
    """Memory that has nothing to do with any problem: reading it leaves nothing else in the L2, and nothing to be
    written back, as writing it would. Empty where there is no GPU."""
    size = OUTGROWS * torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return torch.zeros(size // 8, dtype=torch.int64, device=device)


class Arena:
    """Sets of operands and a workspace in the shared int16 `memory`, laid out as `buffers` says.

    `given` are the shared inputs (A, B and what more there is), which candidate and baseline find there in turn, `c`
    the candidate's shared outputs; `inputs` are the private originals of what is given, `reference` is where the
    baseline's C goes; `powers` [sets,K] are those of two by which `fill` scaled the columns of A, and divided the rows
    of B. Whatever lies between and behind the operands and is not workspace holds secret patterns.
    """

    def __init__(self, buffers: BufferLayout, memory: Tensor, rng: torch.Generator) -> None:
        self.buffers, self.problem, self.memory, self._rng = buffers, buffers.problem, memory, rng
        *given, self.c = views(memory, buffers)
        *originals, self.reference = private(buffers, memory.device)
        self.given, self.inputs = tuple(given), tuple(originals)
        self.powers = torch.zeros(buffers.sets, self.problem.k, dtype=torch.int8, device=memory.device)
        behind = buffers.sets * buffers.stride + GUARD
        self._tail = memory[behind // 2 : buffers.bytes // 2]
        self._log = self._tail[-buffers.log_words :]
        self._workspace = (buffers.workspace - behind) // 2  # where it begins in the tail
        names = [operand.name for operand in operators.operands(self.problem)]
        self._bands = [f"before {names[0]}", *(f"after {name}" for name in names)]
        self._guards = self._guard_views(memory)
        self._secrets = [self._nan_patterns(view.shape) for view in (*self._guards, self._tail)]
        self._secrets[-1][-buffers.log_words] = 0  # at the head of the log, as the touch behind all others leaves it
        self._elsewhere = elsewhere(memory.device)
        self.inputs_given = 0
        """How often inputs were put in: where it is as it was, so are they, but for a window's history."""
        self.restore()

    def _guard_views(self, memory: Tensor) -> list[Tensor]:
        """[sets, width] views of the bands before each operand and after the last; the last set's successor has one
        more before the first."""
        at, stride = self.buffers, self.buffers.stride // 2
        return [
            memory.as_strided((at.sets + (start == 0), (end - start) // 2), (stride, 1), start // 2)
            for start, end in zip((0, *at.ends), (*at.offsets, at.stride))
        ]

    def settle(self) -> None:
        """Wait for everything that was enqueued here, before another process looks; no cache holds any of it then.

        What was written last would else be in the L2, more of it for whoever goes first, and how long it stayed there
        would be up to the kernel: one whose own loads are the first to be evicted (`evict_first`) finds it there still,
        where an ordinary one has driven it out.
        """
        if self.memory.is_cuda:
            self._elsewhere.max()
            torch.cuda.synchronize()

    def restore(self) -> None:
        """Put back what an earlier candidate may have overwritten, or did not live to see changed."""
        for view, secret in zip((*self._guards, self._tail), self._secrets):
            view.copy_(secret)
        for original, shared in zip(self.inputs, self.given):
            shared.copy_(original)

    def fill(self, window: slice) -> None:
        """Fresh normals of uneven scale in the inputs of these sets, and in their private originals."""
        self.inputs_given += 1
        originals = [original[window] for original in self.inputs]
        self.powers[window] = inputs.fill_uneven(self._rng, originals, self.problem)
        for original, shared in zip(originals, self.given):
            shared[window] = original

    def put(self, number: int, given: Sequence[Tensor]) -> None:
        """These inputs in one set."""
        self.inputs_given += 1
        for original, shared, value in zip(self.inputs, self.given, given, strict=True):
            original[number] = value
            shared[number] = value

    def poison(self, workspace: int) -> None:
        """NaN in every output, and random ones in the `workspace` bytes asked for but for the semaphores."""
        inputs.poison(self.c)
        used = self._tail[self._workspace : self._workspace + workspace // 2]
        used.copy_(self._nan_patterns(used.shape))
        used[: CUDA_CONTRACT.semaphores // 2] = 0

    def touches(self, history: History) -> Touches:
        """A history's touches, in bytes from where the memory begins."""
        return history.touches((*self.given, self.c), self._log, self.memory.data_ptr())

    def kept_late(self, history: History) -> int:
        """How many of the elements that a history kept, when their calls were over, are others than in the end. The log
        is then as it was."""
        expected = history.logged(self.c.view(torch.int16))
        kept = self._log[1 : 1 + len(expected)]
        late = int((kept != expected).sum())
        kept.copy_(self._secrets[-1][-len(self._log) :][1 : 1 + len(expected)])
        return late

    def inputs_intact(self) -> bool:
        """Whether the inputs of every set hold what their private originals do: memory that is not asked for, too."""
        return all(
            torch.equal(shared.view(torch.int16), original.view(torch.int16))
            for shared, original in zip(self.given, self.inputs)
        )

    def others_unwritten(self, window: slice) -> bool:
        """Whether no output but those of these sets was written since `poison`."""
        others = (self.c[: window.start], self.c[window.stop :])
        return not any(bool((c.view(torch.int16) != self.problem.type.nan).any()) for c in others if len(c))

    def guard_finding(self) -> str:
        """Which band beside an operand was written; empty where none was."""
        for name, view, secret in zip(self._bands, self._guards, self._secrets):
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

    def _nan_patterns(self, shape: torch.Size) -> Tensor:
        """Random NaNs of the problem's type as int16: everything above the bits of infinity, up to 0x7fff."""
        low, rng = self.problem.type.infinity + 1, self._rng
        return torch.randint(low, 0x8000, shape, generator=rng, device=rng.device, dtype=torch.int16)


class Run(Protocol):
    """Replays sets in the order given, each behind its touches, if there are any."""

    def __call__(self, sets: Sequence[int], touches: Touches | None = None) -> tuple[float, float]:
        """Seconds on the device's clock and on the host's."""


def check_calls(run: Run, arena: Arena, workspace: int, rounding: int) -> tuple[Outcome, float]:
    """What `outcome.check` finds, and seconds of the fastest call.

    The first of the calls is the candidate's first launch. Which two sets are called in turn is drawn, for a launcher
    was asked for each in turn and may have recorded another kernel for the first. Raises CandidateFailed.
    """
    rng = inputs.generator(arena.memory.device)
    numbers = cycle(torch.randperm(arena.buffers.sets, generator=rng, device=rng.device)[:2].tolist())
    times: list[float] = []

    def run_on(given: Sequence[Tensor]) -> Tensor:
        result, seconds = check_call(run, arena, next(numbers), given, workspace)
        times.append(seconds)
        return result

    return outcome.check(run_on, arena.problem, rng, rounding), min(times)


def check_call(run: Run, arena: Arena, number: int, given: Sequence[Tensor], workspace: int) -> tuple[Tensor, float]:
    """One call of set `number` on poisoned C and workspace; a copy of C, and seconds. Raises CandidateFailed."""
    arena.put(number, given)
    arena.poison(workspace)
    arena.settle()
    seconds, _ = run([number])
    if said := arena.guard_finding():
        raise CandidateFailed(Status.OUT_OF_BOUNDS, said)
    if said := arena.workspace_finding(workspace):
        raise CandidateFailed(Status.OUT_OF_BOUNDS if "beyond" in said else Status.WRONG, said)
    if not arena.inputs_intact():
        raise CandidateFailed(Status.WRONG, "changed an input")
    if not arena.others_unwritten(slice(number, number + 1)):
        raise CandidateFailed(Status.OUT_OF_BOUNDS, "wrote to the output of another call")
    return arena.c[number].clone(), seconds
