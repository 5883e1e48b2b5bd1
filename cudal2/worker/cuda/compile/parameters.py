"""Where a kernel reads parameters: only within them, and their addresses go to the tensor engine alone.

A kernel that has the generic address of a parameter (`cvta.param`, of a `__grid_constant__` one) reads the memory
around it like any other. There the driver keeps the parameters of the graph's other launches, and with them the
addresses of the inputs to come. PTX ISA 9.0, "Kernel Function Parameters", "cvta" and "cp.async.bulk.tensor".

It is looked for in the PTX, where addresses can be followed by the names of registers. The gate asks the built code
once more (`sass.py`): how far a kernel reads the constant bank of its parameters, and whether at a computed place.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cudal2.worker.cuda.compile import ptx
from cudal2.worker.cuda.compile.ptx import NAME, WORD, Body, Statement

REMEDY = (
    "read parameters by value, at places that are known when it is compiled; pass each tensor map as a "
    "__grid_constant__ parameter, and choose between them by ?:"
)
MAP = 128
"""Bytes of a tensor map."""
MOST = 64
"""Addresses that one register may stand for."""

_ADDRESS = re.compile(rf"\[\s*({NAME})\s*(?:\+\s*(-?\w+)\s*)?(?=[\],])")
_ELSEWHERE = {
    *(("cvta", "to", "param"), ("cvta", "to", "const"), ("cvta", "const")),
    *(("isspacep", "param"), ("isspacep", "const")),
}
"""What tells where parameters or constants lie among all memory: around them is the driver's."""
_64 = {"b64", "s64", "u64"}


class ParameterAddress(NamedTuple):
    """An address so many bytes into a parameter, in parameter space or `generic`."""

    generic: bool
    parameter: str
    offset: int


Addresses = Mapping[str, set[ParameterAddress]]
"""The addresses that each register, or name of a parameter, may stand for."""


def faults(bodies: Iterable[Body]) -> tuple[str, ...]:
    """What speaks against the kernels and functions of a PTX file: the first fault of each, in words."""
    return tuple(fault for fault in map(_fault, bodies) if fault)


def _fault(body: Body) -> str | None:
    if not body.kernel:
        return next(filter(None, map(_reaches_out, body.statements)), None)
    own = tuple(one._replace(name=tuple(part for part in one.name if part != "entry")) for one in body.statements)
    body = body._replace(statements=own)
    try:
        held = _followed(body)
        return next(filter(None, (_misuse(statement, body, held) for statement in own)), None)
    except ValueError as error:
        return str(error)


def _reaches_out(statement: Statement) -> str | None:
    """What is wrong with an instruction of a function, whose own parameters lie in registers and on the stack."""
    name = statement.name
    plain = name[:2] in (("ld", "param"), ("st", "param")) and "entry" not in name
    asks = _asks(statement) or ("param" in name and not plain)
    return f"{statement}: a function asks for what its caller's parameters hold" if asks else None


def _asks(statement: Statement) -> bool:
    """Whether an instruction tells where parameters or constants are."""
    return bool({statement.name[:2], statement.name[:3]} & _ELSEWHERE)


def _followed(body: Body) -> Addresses:
    """What each register may stand for, whatever the order in which the instructions run.

    Raises ValueError for an address beyond its parameter, or a register with too many.
    """
    sizes = body.called | body.parameters
    uses: defaultdict[str, list[Statement]] = defaultdict(list)
    for statement in body.statements:
        for word in set(WORD.findall(statement.operands)):
            uses[word].append(statement)
    held: defaultdict[str, set[ParameterAddress]] = defaultdict(
        set, {name: {ParameterAddress(False, name, 0)} for name in sizes}
    )
    waiting = list(sizes)
    while waiting:
        for statement in uses[waiting.pop()]:
            target, places = _made(statement, held)
            if not places <= held[target]:
                held[target] |= places
                waiting.append(target)
                if any(not 0 <= place.offset < sizes[place.parameter] for place in places):
                    raise ValueError(f"{statement} makes an address beyond its parameter")
                if len(held[target]) > MOST:
                    raise ValueError(f"{target} may stand for more than {MOST} places in the parameters")
    return held


def _made(statement: Statement, held: Addresses) -> tuple[str, set[ParameterAddress]]:
    """The register in which an instruction makes addresses that are followed, and which; none where it makes none."""
    target, *given = (part.strip() for part in statement.operands.split(","))
    known = [held.get(one, set()) for one in given]
    if not re.fullmatch(NAME, target):
        return target, set()
    match statement.name, len(given):
        case ("mov", kind), 1 if kind in _64:
            return target, known[0]
        case ("selp", kind), 3 if kind in _64 and known[0] and known[1]:
            return target, known[0] | known[1]
        case ("cvta", "param", "u64"), 1 if not any(place.generic for place in known[0]):
            return target, {place._replace(generic=True) for place in known[0]}
        case ("add", kind), 2 if kind in _64 and known[0] and not held.get(given[1]) and given[1][:1] in "-0123456789":
            more = ptx.number(given[1])
            return target, {place._replace(offset=place.offset + more) for place in known[0]}
    return target, set()


def _misuse(statement: Statement, body: Body, held: Addresses) -> str | None:
    """What is wrong with an instruction that makes no address: it may read with one, within what it points into."""
    name, operands = statement.name, statement.operands
    if _asks(statement):
        return f"{statement} tells where parameters or constants are"
    tracked = [word for word in WORD.findall(operands) if held.get(word)]
    if _made(statement, held)[1] or (not tracked and "param" not in name):
        return None
    if name[:2] == ("st", "param") and (place := _ADDRESS.match(operands)) and tracked == [place[1]]:
        return None if place[1] in body.called else f"{statement} writes to a parameter"
    if name[0] == "call" and body.called.keys() >= set(tracked):
        return None
    if name[:2] == ("ld", "param") and "func" not in name:
        return _beyond(statement, r"\[", held, body, generic=False, size=1)
    if _tensor(name):
        behind = r"\[(?=[^\]]*,\s*\{)" if name[0] == "cp" else r"\["
        return _beyond(statement, behind, held, body, generic="param" not in name, size=MAP)
    return f"{statement} uses the address of a parameter"


def _tensor(name: tuple[str, ...]) -> bool:
    """Whether an instruction takes the address of a tensor map."""
    return (name[0] == "cp" and "bulk" in name and "tensor" in name) or (
        name[0] in ("prefetch", "fence") and "tensormap" in name
    )


def _beyond(statement: Statement, behind: str, held: Addresses, body: Body, generic: bool, size: int) -> str | None:
    """What is wrong with the address that an instruction reads parameters by, the first one `behind` this pattern."""
    opening = re.search(behind, statement.operands)
    address = _ADDRESS.match(statement.operands, opening.start()) if opening else None
    places = held.get(address[1], set()) if address else set()
    tracked = [word for word in WORD.findall(statement.operands) if held.get(word)]
    if not address or not places:
        return f"{statement} reads a parameter at a place that is computed"
    if len(tracked) > 1:
        return f"{statement} uses the address of a parameter as a value"
    more = ptx.number(address[2] or "0")
    for place in places:
        room = (body.called | body.parameters)[place.parameter] - size
        if place.generic is not generic or not 0 <= place.offset + more <= room:
            return f"{statement} reads beyond parameter {place.parameter}"
    return None
