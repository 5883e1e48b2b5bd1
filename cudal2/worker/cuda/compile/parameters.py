"""Where a kernel reads parameters, by its PTX: only within them, and their addresses go to the tensor engine alone.

A kernel that has the generic address of a parameter (`cvta.param`, of a `__grid_constant__` one) reads the memory
around it like any other. There the driver keeps the parameters of the graph's other launches, and with them the
addresses of the inputs to come. An offset beyond a parameter leads there, too. PTX ISA 9.0, "Kernel Function
Parameters", "cvta" and "cp.async.bulk.tensor".

A register is followed by its name through a whole kernel, in whatever order: it may hold all that any instruction puts
there. A source can put any text into its PTX by inline assembly, so what is not understood is refused.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

REMEDY = (
    "read parameters by value, at places that are known when it is compiled; pass each tensor map as a "
    "__grid_constant__ parameter"
)
GRID_BARRIER = frozenset({"%envreg1", "%envreg2"})
"""What cooperative groups read of the driver's registers: where the barrier of the grid is."""
MAP = 128
"""Bytes of a tensor map."""

_SPACE = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+[\w$]+\s*(?:\(([^)]*)\))?[^{;]*\{")
_DECLARED = re.compile(r"\.param\b.*?\.[a-z]+(\d+)\b[^\d\w].*?([\w$]+)\s*(?:\[\s*(\d+)\s*\])?\s*$", re.DOTALL)
_LEADING = re.compile(r"^(?:\s|[{}]|[\w$]+\s*:(?!:))+")
_STATEMENT = re.compile(r"(?:@!?[%\w$]+\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_NAME = re.compile(r"(?<![\w$.%])[%\w$]+")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?(?:0[xX][0-9a-fA-F]+|\d+))\s*)?(?=[\],])")
_TENSOR = re.compile(
    r"cp\.(?:reduce\.)?async\.bulk\.(?:prefetch\.)?tensor\.|prefetch\.tensormap|fence\.proxy\.tensormap"
)


class Place(NamedTuple):
    """An address so many bytes into a parameter, in parameter space or `generic`."""

    generic: bool
    parameter: str
    offset: int


Held = Mapping[str, set[Place]]
"""The addresses that each register, or name of a parameter, may stand for."""


def suspicions(ptx: str) -> tuple[str, ...]:
    """What speaks against the kernels of a PTX file: the first fault of each, in words."""
    if any(found[0] == '"' and re.search(r"//|/\*|\*/|\\", found) for found in _SPACE.findall(ptx)):
        return ("a string in the PTX looks like a comment",)
    text = _SPACE.sub(lambda found: '""' if found.group()[0] == '"' else " ", ptx)
    if '"' in text.replace('""', "") or "/*" in text or re.search(r"^\s*#", text, re.MULTILINE):
        return ("the PTX has a preprocessor's directive, or a string or comment without an end",)
    if driver := set(re.findall(r"%envreg\d*", text)) - GRID_BARRIER:
        return (f"a kernel reads {min(driver)}, a register of the driver's",)
    entries = [(found.group(1) or "", _block(text, found.end())) for found in _ENTRY.finditer(text)]
    faults = [fault for declared, body in entries if (fault := _fault(_sizes(declared.split(",")), body))]
    if text.count("cvta.param") > sum(body.count("cvta.param") for _, body in entries):
        faults.append("a function takes the address of a parameter")
    return tuple(faults)


def _block(text: str, start: int) -> str:
    """The text from `start`, which is just behind a brace, to the brace that closes it."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return text[start : brace.start()]
    return text[start:]


def _sizes(declarations: Sequence[str]) -> dict[str, int]:
    """The bytes of each parameter that is declared."""
    found = filter(None, (_DECLARED.search(one) for one in declarations))
    return {hit.group(2): int(hit.group(1)) // 8 * int(hit.group(3) or 1) for hit in found}


def _fault(parameters: dict[str, int], body: str) -> str | None:
    """The first fault of a kernel with these parameters (name to bytes)."""
    parts = [_LEADING.sub("", part).strip() for part in body.split(";")]
    sizes = parameters | _sizes([part for part in parts if part.startswith(".param")])  # and those of its own calls
    steps = [hit.groups() for part in parts if (hit := _STATEMENT.fullmatch(part))]
    held = defaultdict(set, {name: {Place(False, name, 0)} for name in sizes})
    grows = True
    while grows:
        grows = False
        for operation, operands in steps:
            target, places = _made(operation, operands, held)
            for place in places - held[target]:
                if not 0 <= place.offset < sizes[place.parameter]:
                    return f"{operation} makes an address beyond parameter {place.parameter}"
                held[target].add(place)
                grows = True
    used = ((operation, operands) for operation, operands in steps if not _made(operation, operands, held)[1])
    return next(filter(None, (_misuse(*step, held, sizes, parameters) for step in used)), None)


def _made(operation: str, operands: str, held: Held) -> tuple[str, set[Place]]:
    """The register in which an instruction makes addresses that are followed, and which; none where it makes none."""
    target, *given = (part.strip() for part in operands.split(","))
    known = [held.get(one, set()) for one in given]
    if re.fullmatch(r"mov\.[bus]64", operation) and len(given) == 1:
        return target, known[0]
    if re.fullmatch(r"selp\.[bus]64", operation) and len(given) == 3 and known[0] and known[1]:
        return target, known[0] | known[1]
    if operation == "cvta.param.u64" and len(given) == 1:
        return target, {place._replace(generic=True) for place in known[0] if not place.generic}
    if re.fullmatch(r"add\.[us]64", operation) and len(given) == 2 and re.fullmatch(r"-?(?:0[xX]\w+|\d+)", given[1]):
        return target, {place._replace(offset=place.offset + int(given[1], 0)) for place in known[0]}
    return target, set()


def _misuse(operation: str, operands: str, held: Held, sizes: dict[str, int], ours: dict[str, int]) -> str | None:
    """What is wrong with an instruction that makes no address: it may read with one, within what it points into."""
    names = [name for name in _NAME.findall(operands) if held.get(name)]
    addresses = [(hit.group(1), int(hit.group(2) or "0", 0)) for hit in _ADDRESS.finditer(operands)]
    known = [(place, more) for name, more in addresses for place in held.get(name, ())]
    tensor, loads = bool(_TENSOR.match(operation)), operation.startswith("ld.param")
    if loads and not known:
        return f"{operation} reads a parameter at a place that is computed: {operands[:60]}"
    if all(place.parameter not in ours for name in names for place in held[name]):
        return None  # those of a call that it makes
    if not (tensor or loads) or len(names) > sum(bool(held.get(name)) for name, _ in addresses):
        return f"{operation} uses the address of a parameter: {operands[:60]}"
    for place, more in known:
        if place.generic is not tensor:
            return f"{operation} uses the address of parameter {place.parameter}"
        if not 0 <= place.offset + more <= sizes[place.parameter] - (MAP if tensor else 1):
            return f"{operation} reads beyond parameter {place.parameter}"
    return None
