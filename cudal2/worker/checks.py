"""Is a candidate right? Four calls on inputs that show every shortcut, the same on every target."""

import math
from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from cudal2 import operators
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker import inputs, limits, verify
from cudal2.worker.outcome import Outcome, raise_finding

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
    first = run_on(normal)
    found, rho, error = verify.check_normal(first, exact, problem, rounding)
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
    raise_finding(verify.check_normal(again, exact, problem, rounding)[0], repeatable=False, **known)
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
