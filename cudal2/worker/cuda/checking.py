"""Is a recorded launcher right? Single calls on inputs that show every shortcut, with all around them unharmed."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cudal2.records import Status
from cudal2.worker import inputs, verify
from cudal2.worker.cuda.arena import Arena
from cudal2.worker.cuda.layout import Salt
from cudal2.worker.outcome import CandidateFailed, raise_finding


class Run(Protocol):
    """Replays sets in the order given, each behind a salt where there are any."""

    def __call__(self, sets: Sequence[int], salts: Sequence[Salt] = ()) -> tuple[float, float]:
        """Seconds on the device's clock and on the host's."""


def check_calls(run: Run, arena: Arena, workspace: int, rounding: int) -> tuple[dict, float]:
    """Normals, integers, wide integers, and the normals again; also seconds of the fastest call.

    The first of them is the candidate's first launch. Which sets are called is drawn, for a launcher was asked for each
    in turn and may have recorded another kernel for the first. The result has the fields `rho`, `max_error` and
    `repeatable` of a verdict. Raises CandidateFailed.
    """
    problem, rng = arena.problem, inputs.generator(arena.memory.device)
    data = inputs.normal(rng, problem)
    exact = verify.reference(*data, problem)
    one, other = torch.randperm(arena.layout.sets, generator=rng, device=rng.device)[:2].tolist()
    first, seconds = call(run, arena, one, data, workspace)
    found, rho, error = verify.check_normal(first, exact, problem, rounding)
    raise_finding(found)
    times = [seconds]
    small, wide = (other, inputs.exact_integers, "small integers"), (one, inputs.wide_integers, "11-bit integers")
    for number, make, name in (small, wide):
        integers = make(rng, problem)
        result, seconds = call(run, arena, number, integers, workspace)
        raise_finding(verify.check_exact(result, verify.reference(*integers, problem), name))
        times.append(seconds)
    again, seconds = call(run, arena, other, data, workspace)
    raise_finding(verify.check_normal(again, exact, problem, rounding)[0])
    same = torch.equal(first.view(torch.int16), again.view(torch.int16))
    return {"rho": rho, "max_error": error, "repeatable": same}, min(*times, seconds)


def call(run: Run, arena: Arena, number: int, data: tuple[Tensor, Tensor], workspace: int) -> tuple[Tensor, float]:
    """One call of set `number` on poisoned C and workspace; a copy of C, and seconds. Raises CandidateFailed."""
    arena.put(number, *data)
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
