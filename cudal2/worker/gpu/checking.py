"""Single calls of a recorded launcher, with all around them unharmed."""

from collections.abc import Sequence
from itertools import cycle
from typing import Protocol

import torch
from torch import Tensor

from cudal2.records import Status
from cudal2.worker import checks, inputs
from cudal2.worker.gpu.arena import Arena
from cudal2.worker.gpu.history import Touches
from cudal2.worker.outcome import CandidateFailed, Outcome


class Run(Protocol):
    """Replays sets in the order given, each behind its touches, if there are any."""

    def __call__(self, sets: Sequence[int], touches: Touches | None = None) -> tuple[float, float]:
        """Seconds on the device's clock and on the host's."""


def check_calls(run: Run, arena: Arena, workspace: int, rounding: int) -> tuple[Outcome, float]:
    """What `checks.check` finds, and seconds of the fastest call.

    The first of the calls is the candidate's first launch. Which two sets are called in turn is drawn, for a launcher
    was asked for each in turn and may have recorded another kernel for the first. Raises CandidateFailed.
    """
    rng = inputs.generator(arena.memory.device)
    numbers = cycle(torch.randperm(arena.buffers.sets, generator=rng, device=rng.device)[:2].tolist())
    times: list[float] = []

    def run_on(given: Sequence[Tensor]) -> Tensor:
        result, seconds = call(run, arena, next(numbers), given, workspace)
        times.append(seconds)
        return result

    return checks.check(run_on, arena.problem, rng, rounding), min(times)


def call(run: Run, arena: Arena, number: int, given: Sequence[Tensor], workspace: int) -> tuple[Tensor, float]:
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
