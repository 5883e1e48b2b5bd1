"""Which registers a kernel may read, in its PTX: of the special ones those that are named here, and of its own none
that nothing wrote.

Allowed is what says where a thread is within its own launch, and how large that launch is: the same in every call.
Refused are clocks and counters (%clock, %globaltimer, %pm), what tells launches or places on the chip apart (%gridid,
%smid, %nsmid, %warpid, %nwarpid: the hardware's numbers, by which a kernel finds what an earlier one left there), what
the driver keeps (%envreg, %current_graph_exec, %reserved_smem_offset), and what is not known yet.

One exception is followed: cooperative groups take the address of the grid's barrier from %envreg1 and %envreg2. It
leads into the driver's memory, so nothing may be done with it but to add to the barrier and to read it. PTX ISA 9.0,
"Special Registers"; for the barrier, what nvcc makes of `this_grid().sync()`.

In a register that a kernel reads and never writes the kernel before may have left something.
nvcc gives every value a register of its own, and none to what has no value, so that honest code has no such register.
The exception is an accumulator of wgmma, whose first step may ignore it: a predicate says so, or a number.

This names what is plain. A register that is written on some ways through a kernel only, part of one, or what a function
should have stored to return it, is not seen; nor is a predicate of wgmma that is always true. And memory of threads and
blocks keeps what was there, too. What such a kernel finds must not tell it anything: that is for the order in which
inputs change to see to, and for what touches leave in registers (history.py).
"""

import re
from collections import defaultdict
from collections.abc import Iterable

from cudal2.worker.cuda.compile import ptx
from cudal2.worker.cuda.compile.ptx import NAME, WORD, Body, Statement

SPECIAL_REMEDY = (
    "of the special registers a kernel may read those that give its place in the launch and the launch's size"
)
ALLOWED = frozenset(
    {
        # Where a thread is in its block and in the grid: every kernel needs these.
        *("%tid", "%ntid", "%ctaid", "%nctaid"),
        # Where it is in its warp: cooperative groups, CUB, and the masks of votes.
        *("%laneid", "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt"),
        # Where its block is in a cluster: CuTe and cooperative groups.
        *("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid", "%cluster_ctarank", "%cluster_nctarank"),
        "%is_explicit_cluster",
        # How much shared memory the launch has: cooperative groups.
        *("%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size"),
    }
)
BARRIER = ("%envreg1", "%envreg2")
_LAST = 4
"""Bytes behind the barrier's address at which its count stands."""
_ADDRESS = re.compile(rf"\[\s*({NAME})\s*(?:\+\s*(\d+)\s*)?\]")
_WIDENED = ("cvt", "u64", "u32")
UNWRITTEN_REMEDY = (
    "give each variable a value before it is read, and each output of inline assembly, without a condition"
)
_CARRY, _CARRIED = "the carry", {"addc", "subc", "madc"}
"""What an instruction with `.cc` writes and these read; no register has such a name."""
_SOURCES_ONLY = frozenset(
    "st red bra brx ret exit trap bar barrier membar fence prefetch prefetchu nanosleep discard applypriority "
    "setmaxnreg stmatrix griddepcontrol pmevent".split()
)
"""Instructions whose first operand is no register that they write."""


def special_faults(bodies: Iterable[Body]) -> tuple[str, ...]:
    """What speaks against the kernels and functions of a PTX file: the first fault of each, in words."""
    return tuple(fault for fault in map(_special_fault, bodies) if fault)


def _special_fault(body: Body) -> str | None:
    read: set[str] = set()
    for statement in body.statements:
        for word in statement.special:
            if word not in ALLOWED and not _takes_barrier(statement):
                return f"{word[:40]} in {statement}"
            read.add(word)
    return _strays(body) if read & {*BARRIER} else None


def _takes_barrier(statement: Statement) -> bool:
    """Whether it is a plain move of a half of the barrier's address, without a guard (whose words come first)."""
    target, _, source = statement.operands.partition(",")
    return statement.name in {("mov", "u32"), ("mov", "b32")} and source.strip() in BARRIER and target.strip() != ""


Parts = dict[str, set[tuple[str, int]]]
"""What each register may hold of the barrier's address: a half, a half in 64 bits, or the whole and an offset."""


def _strays(body: Body) -> str | None:
    """The first statement that does with the barrier's address what a barrier does not, whatever runs when."""
    uses: defaultdict[str, list[Statement]] = defaultdict(list)
    for statement in body.statements:
        for word in set(WORD.findall(statement.operands)):
            uses[word].append(statement)
    held: Parts = {half: {(half, 0)} for half in BARRIER}
    waiting = list(BARRIER)
    while waiting:
        for statement in uses[waiting.pop()]:
            target, made = _made(statement, held)
            if made - held.get(target, set()):
                held.setdefault(target, set()).update(made)
                waiting.append(target)
    for statement in body.statements:
        if any(word in held for word in WORD.findall(statement.operands)):
            target, made = _made(statement, held)
            # A register that holds the address somewhere must not be given another value elsewhere.
            if not made and (target in held or not _of_a_barrier(statement, held)):
                return f"{statement} uses the address of the grid's barrier"
    return None


def _made(statement: Statement, held: Parts) -> tuple[str, set[tuple[str, int]]]:
    """The register in which a statement makes more of the address, and what; nothing where it does not."""
    target, *given = (part.strip() for part in statement.operands.split(","))
    parts = [held.get(one, set()) for one in given]
    kinds = [{kind for kind, _ in one} for one in parts]
    match statement.name, len(given):
        case ("mov", "u32" | "b32" | "u64" | "b64"), 1:
            return target, parts[0]
        case name, 1 if name == _WIDENED and kinds[0] <= {*BARRIER}:
            return target, {(f"wide {kind}", 0) for kind in kinds[0]}
        case ("shl", "b64"), 2 if kinds[0] == {"wide %envreg1"} and given[1] == "32":
            return target, {("upper", 0)}
        case ("or", "b64"), 2 if {*kinds[0], *kinds[1]} == {"upper", "wide %envreg2"}:
            return target, {("whole", 0)}
        case ("bfi", "b64"), 4 if kinds[:2] == [{"wide %envreg1"}, {"wide %envreg2"}] and given[2:] == ["32", "32"]:
            return target, {("whole", 0)}
        case ("add", "s64" | "u64"), 2 if kinds[0] == {"whole"} and given[1] == str(_LAST):
            return target, {("whole", offset + _LAST) for _, offset in parts[0] if offset + _LAST <= 2 * _LAST}
    return target, set()


def _of_a_barrier(statement: Statement, held: Parts) -> bool:
    """Whether it adds to the barrier, reads it, or asks whether there is one."""
    name, operands = statement.name, statement.operands
    words = [word for word in WORD.findall(operands) if word in held]
    if name[:2] in (("setp", "ne"), ("setp", "eq")):
        return operands.count(",") == 2 and operands.rpartition(",")[2].strip() == "0"
    reads = name[0] == "ld" or (name[0] in ("atom", "red") and "add" in name)
    place = _ADDRESS.search(operands)
    if not reads or name[-1] != "u32" or {"v2", "v4", "v8"} & {*name} or not place:
        return False
    offsets = {offset + ptx.number(place[2] or "0") for kind, offset in held.get(place[1], set()) if kind == "whole"}
    whole = all(kind == "whole" for kind, _ in held.get(place[1], set()))
    return words == [place[1]] and whole and offsets == {_LAST}


def unwritten_faults(bodies: Iterable[Body]) -> tuple[str, ...]:
    """What speaks against the kernels and functions of a PTX file: the first such register of each, and its reader."""
    return tuple(fault for fault in map(_unwritten_fault, bodies) if fault)


def _unwritten_fault(body: Body) -> str | None:
    """A register is written where a statement makes it of such as are written before: not of itself alone, nor of one
    that is made of it."""
    written = {*body.parameters, *body.called}
    read: dict[str, Statement] = {}
    waiting = []
    registers = {*body.registers, _CARRY}
    for statement in body.statements:
        target, sources = _operands(statement)
        needs = {word for word in (statement.guard, *sources) if word in registers}
        if not statement.guard:
            waiting.append((target, needs))
        for word in needs:
            read.setdefault(word, statement)
    left = len(waiting) + 1
    while len(waiting) < left:
        left, later = len(waiting), []
        for target, needs in waiting:
            if needs <= written:
                written.update(target)
            else:
                later.append((target, needs))
        waiting = later
    found = next((word for word in read if word not in written), None)
    return None if found is None else f"{found[:40]}, which nothing writes, is read by {read[found]}"


def _operands(statement: Statement) -> tuple[list[str], list[str]]:
    """The registers and names that a statement writes, and those that it reads."""
    target, sources = _named(statement)
    if _adds_up(statement):
        sources = sources + target
    if "cc" in statement.name[1:]:
        target = [*target, _CARRY]
    return target, [*sources, _CARRY] if statement.name[0] in _CARRIED else sources


def _adds_up(statement: Statement) -> bool:
    """Whether it is a wgmma that adds to what its accumulator holds, whatever a predicate says."""
    if statement.name[:2] != ("wgmma", "mma_async"):
        return False
    _, *given = re.sub(r"\{[^}]*\}", "", statement.registers).split(",")
    scale = given[4 if "sp" in statement.name else 2].strip() if len(given) > 4 else ""
    return bool(re.fullmatch(r"\d\w*", scale)) and ptx.number(scale) != 0


def _named(statement: Statement) -> tuple[list[str], list[str]]:
    """The same by their places alone."""
    operands = statement.registers
    if statement.name[0] == "call":
        end = operands.find(")") + 1 if operands.startswith("(") else 0
        return WORD.findall(operands[:end]), WORD.findall(operands[end:])
    alone = statement.name[0] in _SOURCES_ONLY and "red" not in statement.name[1:]  # bar.red has a result
    if alone or operands.startswith("["):
        return [], WORD.findall(operands)
    end = operands.find("}") + 1 if operands.startswith("{") else (operands + ",").find(",")
    return WORD.findall(operands[:end]), WORD.findall(operands[end:])
