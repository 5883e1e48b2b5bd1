"""Which two instructions must keep their order whatever the scheduling fields say, and which never move.

For registers, by the definitions and uses that nvdisasm names. For memory, by PTX ISA, "Memory Consistency Model":
program order holds between accesses of one thread to the same address. As addresses are not compared here, loads may
pass only loads. An asynchronous copy (`cp.async`) is ordered only with what waits for it. But it must not overwrite
data that an earlier load still reads: so a copy may move behind a load, but not a load behind a copy.
"""

from cudal2.sass import opcodes
from cudal2.sass.latencies import Table
from cudal2.sass.listing import Instruction

_SHARED = opcodes.SHARED_LOADS | opcodes.SHARED_STORES | opcodes.COPIES
_GLOBAL = opcodes.GLOBAL_LOADS | opcodes.GLOBAL_STORES | opcodes.COPIES
_LOCAL = opcodes.LOCAL_LOADS | opcodes.LOCAL_STORES
_SPACES = (_SHARED, _GLOBAL, _LOCAL)
_GENERIC = frozenset({"LD", "ST"})
_LOADS = opcodes.SHARED_LOADS | opcodes.GLOBAL_LOADS | opcodes.LOCAL_LOADS
_ORDERED = frozenset({"STRONG", "MMIO", "SYS", "SM", "VC"})
"""Modifiers of accesses that order other threads' accesses."""


def pinned(one: Instruction, before: Instruction | None, table: Table) -> str:
    """Why an instruction never moves; "" where it may. `before` is the instruction in front of it."""
    if one.operation not in opcodes.KNOWN or one.target is not None:
        return f"{one.operation} is pinned"
    if one.operation not in table.operations:
        return f"nothing is known of the latency of {one.operation} here"
    if one.named:
        return "the cubin names its offset"
    if any(clock in one.operands for clock in opcodes.CLOCKS):
        return "it reads a clock"
    if one.operation in opcodes.MEMORY and _ORDERED.intersection(one.opcode.split(".")):
        return "other threads' memory accesses are ordered by it"
    if dummy(one) or (before is not None and dummy(before)):
        return "an asynchronous copy and the empty loads in front of it are one bundle"
    return ""


def conflict(first: Instruction, second: Instruction) -> str:
    """Why the second of two instructions must not come before the first; empty where it may."""
    if shared := first.defines & second.uses:
        return f"{min(shared)} is defined, then used"
    if shared := first.uses & second.defines:
        return f"{min(shared)} is used, then defined anew"
    if shared := first.defines & second.defines:
        return f"{min(shared)} is defined twice"
    return _memory(first, second)


def _memory(first: Instruction, second: Instruction) -> str:
    one, other = first.operation, second.operation
    if one in _LOADS and other in _LOADS:
        return ""
    if one in opcodes.COPIES and other in opcodes.COPIES | _LOADS:
        return ""
    if other in opcodes.COPIES and one in opcodes.GLOBAL_LOADS:
        return ""
    generic = {one, other} & _GENERIC and {one, other} <= opcodes.MEMORY - opcodes.CONSTANT_LOADS
    if generic or any(one in space and other in space for space in _SPACES):
        return f"{one} and {other} may touch the same memory"
    return ""


def dummy(one: Instruction) -> bool:
    """Whether an instruction is an empty load that ptxas puts in front of an asynchronous copy."""
    return one.operation == "LDS" and one.guard == "@!PT"
