"""A recipe's file read again, so that a kernel that was exported is judged as it is: no compiler, no planner.

A launcher's recording holds a plan for each set of buffers; a recipe gives them all. What a file says is trusted no
more than what a planner wrote: the same is asked of it, and its cubin runs where every candidate's does.
"""

import struct
import zlib
from typing import Any

from cudal2.contract import CUDA_CONTRACT
from cudal2.problem import Problem
from cudal2.worker.cuda import plan
from cudal2.worker.cuda.recipe import MAGIC, SEVERAL, WORD, Recipe, Relocation, applied
from cudal2.worker.gpu.buffers import ROTATED, addresses, buffer_layout, draw_base


class Damaged(ValueError):
    """The file is no recipe of this format, or not for that cubin; the message says which."""


class _Reader:
    """Takes numbers and bytes in order. Raises Damaged behind the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> tuple[Any, ...]:
        try:
            found = struct.unpack_from(f"<{form}", self.data, self.at)
        except struct.error:
            raise Damaged("the recipe ends too soon") from None
        self.at += struct.calcsize(f"<{form}")
        return found

    def number(self, form: str = "I") -> int:
        return self.take(form)[0]

    def bytes(self) -> bytes:
        """Behind a number that says how many."""
        return self.take(f"{self.number()}s")[0]


def launchable(sealed: bytes, cubin: bytes, problem: Problem, rotated: int = ROTATED) -> plan.CudaLaunchable:
    """What a runner launches for this problem, on the sets of buffers of `rotated` bytes of matrices.

    Raises Damaged, and PlanError for launches that are not let through.
    """
    recipe = unsealed(sealed, cubin, problem)
    base = draw_base()
    places = buffer_layout(problem, rotated).places(base)
    first = plan.Recording(recipe.workspace, (applied(recipe, places[0]),))
    plan.check(first, 1, CUDA_CONTRACT.workspace_limit)  # the others differ from it in addresses alone
    plans = (*first.plans, *(applied(recipe, place) for place in places[1:]))
    return plan.CudaLaunchable(b"", cubin, plan.Recording(recipe.workspace, plans, base=base), sealed)


def unsealed(sealed: bytes, cubin: bytes, problem: Problem) -> Recipe:
    """What `recipe.seal` made of a packed recipe, for this cubin and a problem of these operands. Raises Damaged."""
    if not sealed.startswith((MAGIC, SEVERAL)):
        raise Damaged("no recipe of this format")
    reader = _Reader(sealed[len(MAGIC) :])
    crc, rest = reader.number(), reader.data[reader.at :]
    if zlib.crc32(rest) != crc:
        raise Damaged("its checksum is another")
    if reader.number() != zlib.crc32(cubin):
        raise Damaged("it is for another cubin")
    reader.bytes()  # the cubin's name
    workspace, number, count = reader.number("Q"), 0, 1
    if sealed.startswith(SEVERAL):
        operands, launches = reader.take("II")
        rows = dict(reader.take("II") for _ in range(launches))
        if operands != len(addresses(problem)) - 1 or problem.m not in rows:
            raise Damaged(f"it is not for {problem.name}")
        number, count = rows[problem.m], reader.number()
        if number >= count:
            raise Damaged("a launch of no plan")
    moved = [tuple(Relocation(*reader.take("4I")) for _ in range(reader.number())) for _ in range(count)]
    relocations = moved[number]
    try:
        recipe = Recipe(workspace, _plans(reader, count)[number], relocations)
    except UnicodeDecodeError as error:
        raise Damaged(f"a kernel's name cannot be read: {error}") from error
    for one in relocations:
        _check(one, recipe, len(addresses(problem)))
    return recipe


def _plans(reader: _Reader, count: int) -> list[plan.Plan]:
    names = [reader.bytes().decode() for _ in range(reader.number())]
    if reader.number() != count:
        raise Damaged(f"a recipe with other than {count} plans")
    return [tuple(_node(reader, names) for _ in range(reader.number())) for _ in range(count)]


def _node(reader: _Reader, names: list[str]) -> plan.KernelLaunch | plan.Memset:
    if not reader.number():
        offset, count, value, element = reader.take("QQII")
        return plan.Memset(offset, value, element, count)
    number, *extents = reader.take("I9I")
    if number >= len(names):
        raise Damaged(f"a launch of kernel {number} of {len(names)}")
    shared, cooperative, scheduling, carveout = reader.take("IIIi")
    return plan.KernelLaunch(
        name=names[number],
        grid=tuple(extents[:3]),
        block=tuple(extents[3:6]),
        cluster=tuple(extents[6:]),
        shared=shared,
        cooperative=bool(cooperative),
        scheduling=scheduling,
        carveout=carveout,
        parameters=tuple(reader.bytes().hex() for _ in range(reader.number())),
    )


def _check(one: Relocation, recipe: Recipe, addresses: int) -> None:
    """A relocated word lies in a parameter, and counts from one of the addresses. Raises Damaged."""
    try:
        kernel = recipe.nodes[one.node]
        inside = isinstance(kernel, plan.KernelLaunch) and one.byte + WORD <= len(kernel.parameters[one.parameter]) // 2
    except IndexError:
        inside = False
    if not inside or one.of >= addresses:
        raise Damaged("a relocation lies outside its parameter")
