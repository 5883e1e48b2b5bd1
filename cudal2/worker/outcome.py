"""What a bench says about a candidate, on any target: whether it is right, how a failing candidate leaves it, and how
long one may run in all, as a limit on each of its calls would let it hold a device for minutes.

Right or wrong is told by four calls on inputs that show every shortcut, the same on every target (`check`).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import Status, Timing
from cudal2.worker import inputs, limits, scatter, verify


class CandidateFailed(Exception):
    """The candidate's code failed, or what it computed did: the status and reason of its verdict.

    `known` are further fields of its Outcome, as far as the check that failed had come to them.
    """

    def __init__(self, status: Status, reason: str, **known: Any) -> None:
        super().__init__(reason)
        self.status, self.reason, self.known = status, reason, known

    def outcome(self, found: "Outcome", seconds: dict[str, float]) -> "Outcome":
        """Of a bench that has `found` so much before it failed."""
        return msgspec.structs.replace(found, status=self.status, reason=self.reason, seconds=seconds, **self.known)


class Outcome(msgspec.Struct, frozen=True):
    """What a bench found; the fields are those of `Verdict`."""

    status: Status
    reason: str = ""
    rho: float | None = None
    max_error: float | None = None
    repeatable: bool | None = None
    timings: tuple[Timing, ...] = ()
    seconds: dict[str, float] = {}


class Clock:
    """Splits wall time into named laps, in seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def raise_finding(found: verify.Finding | None, **known: Any) -> None:
    """Turn what verification found into the candidate's failure."""
    if found:
        raise CandidateFailed(*found, **known)


def check_closely(result: Tensor, given: Sequence[Tensor], problem: Problem, rounding: int) -> None:
    """One output of a timed call, or a part of it, as strictly as those of single calls. Raises CandidateFailed."""
    exact = verify.reference(given, problem)
    most = scatter.most_squares(given, exact, problem, rounding)
    raise_finding(verify.check_normal(result, exact, problem, rounding, most)[0])


class Allowance:
    """So many `seconds` of wall time for all that one candidate runs, its checks and its timing.

    They are charged while something of the candidate's is waited for, and then alone: what the baseline takes, or the
    referee for its references, or another try after a disturbance by others, is not the candidate's fault.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._spent, self._since = 0.0, 0.0

    @property
    def left(self) -> float:
        """Seconds; zero or less when they are used up."""
        running = time.perf_counter() - self._since if self._since else 0.0
        return self.seconds - self._spent - running

    @property
    def reason(self) -> str:
        """What a verdict says of a candidate that has used them up."""
        return f"running it took more than {self.seconds:g} s in all (worker.verdict_seconds)"

    @contextmanager
    def charged(self) -> Iterator[None]:
        """The candidate runs in the body. Not to be nested."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - self._since
            self._since = 0.0


RunOn = Callable[[Sequence[Tensor]], Tensor]
"""One call on the input operands as stored, which finds its output and its workspace poisoned: a copy of C [M,N].

It looks at all that the call may have written beside C, and raises CandidateFailed."""
Reference = Callable[[Sequence[Tensor], Problem], Tensor]


def check(
    run_on: RunOn,
    problem: Problem,
    rng: torch.Generator,
    rounding: int,
    reference: Reference = verify.reference,
) -> Outcome:
    """Normals of uneven scale, small and wide integers, the first again: ρ, largest error and whether C was the same.

    Inputs come from `rng`, on its device. `rounding` is the number of products after which an f16 accumulator of the
    target rounds. Raises CandidateFailed, with ρ and the largest error where the first call had finite ones, and "not
    the same" where only the last call was wrong.
    """
    normal = inputs.uneven_normal(rng, problem)
    exact = reference(normal, problem)
    most = scatter.most_squares(normal, exact, problem, rounding)
    first = run_on(normal)
    found, rho, error = verify.check_normal(first, exact, problem, rounding, most)
    known = {name: value for name, value in (("rho", rho), ("max_error", error)) if math.isfinite(value)}
    if found and found[0] is Status.WRONG and "rho" in known:
        found = found[0], _for_other_layout(first, normal, problem, reference) + found[1]
    raise_finding(found, **known)
    loss, wide = operators.find(problem.epilogue).loss, f"{problem.type.digits}-bit integers"
    for make, name in ((inputs.exact_integers, "small integers"), (inputs.wide_integers, wide)):
        integers = make(rng, problem)
        result = run_on(integers)
        raise_finding(verify.check_exact(result, reference(integers, problem), name, loss), **known)
    again = run_on(normal)
    raise_finding(verify.check_normal(again, exact, problem, rounding, most)[0], repeatable=False, **known)
    same = torch.equal(first.view(torch.int16), again.view(torch.int16))
    return Outcome(Status.OK, rho=rho, max_error=error, repeatable=same)


def _for_other_layout(result: Tensor, given: Sequence[Tensor], problem: Problem, reference: Reference) -> str:
    """The beginning of a reason, where a wrong result is the product for B read in the other layout; else ""."""
    other = replace(problem, layout="nn" if problem.layout == "tn" else "tn")
    a, b, *more = given
    exact = reference((a, b.reshape(other.b_shape), *more), other)
    if verify.rho(result, exact) > 2 * limits.rho_limit("f16", problem.k, 1):  # no honest precision explains more
        return ""
    return f"right for layout {other.layout}, the problem asks for {problem.layout}: "
