"""Registers that a kernel reads and never writes, in its PTX: there the kernel before may have left something.

nvcc gives every value a register of its own, and none to what has no value, so that honest code has no such register.
The exceptions are instructions that read what they write: an accumulator of wgmma, whose first step ignores it.

This names what is plain. A register that is written on some ways through a kernel only, or part of one, is not seen;
and memory of threads and blocks keeps what was there, too. What such a kernel finds must not tell it anything: that is
for the order in which inputs change to see to.
"""

from collections.abc import Iterable

from cudal2.worker.cuda.compile.ptx import WORD, Body, Statement

REMEDY = "give each variable a value before it is read, and each output of inline assembly, without a condition"
_SOURCES_ONLY = frozenset(
    "st red bra brx ret exit trap bar barrier membar fence prefetch prefetchu nanosleep discard applypriority "
    "setmaxnreg stmatrix griddepcontrol pmevent".split()
)
"""Instructions whose first operand is no register that they write."""


def faults(bodies: Iterable[Body]) -> tuple[str, ...]:
    """What speaks against the kernels and functions of a PTX file: the first such register of each, and its reader."""
    return tuple(fault for fault in map(_fault, bodies) if fault)


def _fault(body: Body) -> str | None:
    written = {*body.parameters, *body.called}
    read: dict[str, Statement] = {}
    for statement in body.statements:
        target, sources = _operands(statement)
        if not statement.guarded or statement.name[0] == "call":
            written.update(target)
        for word in sources:
            read.setdefault(word, statement)
    registers = (word for word in read if word in body.registers and word not in written)
    found = next(registers, None)
    return None if found is None else f"{found[:40]}, which nothing writes, is read by {read[found]}"


def _operands(statement: Statement) -> tuple[list[str], list[str]]:
    """The words of what a statement writes, and of what it reads."""
    operands = statement.operands
    if statement.name[0] == "call":
        return WORD.findall(operands), []
    if statement.name[0] in _SOURCES_ONLY or operands.startswith("["):
        return [], WORD.findall(operands)
    end = operands.find("}") + 1 if operands.startswith("{") else (operands + ",").find(",")
    return WORD.findall(operands[:end]), WORD.findall(operands[end:])
