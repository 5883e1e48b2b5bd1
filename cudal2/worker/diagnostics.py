"""What a compiler's log says: its first error, and whether a source declares the contract's functions otherwise.

Compilers name the place before the error ("In function …", "In file included from …"), linkers the object; what follows
the first error is often its echo.

The contract's declarations are compiled behind a source, so that the compiler checks how its functions are declared. A
source is included nowhere and keeps its lines: one line that includes HEADER is appended to it. There a function of
another type, or one that C cannot see, is an error. What the compiler says then depends on its kind and age;
`checked_declarations` turns it into one message that shows the declaration.
"""

import re
from collections.abc import Callable
from typing import Literal

import msgspec

from cudal2.contract import ENTRY, PLAIN, SIZER, Contract, sizer_declaration
from cudal2.problem import Problem
from cudal2.records import Status
from cudal2.worker.build import LOG_BYTES, B, Built

# What kind of message a line is. GCC: `file:1:2: error: …`; nvcc: `file(1): error: …`; tools: `ptxas fatal   : …`;
# the assembler: `file.s:1: Error: …`.
_KIND = re.compile(
    r"(?:^|[:)\]] |; |^[\w+./-]+ )(?P<kind>(?:fatal |catastrophic |internal (?:compiler )?|command-line )?error|Error"
    r"|fatal|warning|Warning|note|info|Info|[Rr]emark)\b(?: ?#[\w-]+)?\s*:",
)
_LINKER = re.compile(
    r"undefined (?:reference|symbol)|multiple definition of|cannot find -l|relocation .* (?:against|out of)"
)
_ECHO = re.compile(r"^(?:collect2|make)\b|^\d+ errors? detected|^Error limit reached|^compilation terminated")
_CONTEXT = re.compile(
    r"^\S*: (?:In|At) [\w ]+(?:'.*')?.*:$|^In file included from |^\s+from |required (?:from|by)|in function [`'].*:$"
    r"|^\s*\d* \||^\s*[\^~]+\s*$|^Remark:|^\s+detected during|^\s+\[.*\]$"
)
HEADER = "contract.h"
APPENDED = f'\n\n#include "{HEADER}"\n'
"""Two line feeds, as the source may end in a backslash."""
Way = Literal["", "throws nothing"]
"""How ENTRY is declared: C++ has it that `noexcept` is in all declarations of a function or in none."""
_AT_HEADER = re.compile(rf"(?:\S*/)?{re.escape(HEADER)}(?::(\d+):\d+|\((\d+)\)): error: (.*)")
_BEFORE = re.compile(r"note: (?:from )?(?:previous|old) declaration (?:of )?'([^'\n]*)'")
_EXCEPTIONS = re.compile(r"exception specif|(?:allowing|omission of) .*exception")
_DIFFERENT = re.compile(
    r"conflicting|ambiguating|redeclared|redeclaration|overload|incompatible|previous|already|mismatch|distinguished"
)
_SIZES = {"long unsigned int": "size_t", "unsigned long": "size_t"}
_UNSEEN_BY_C = re.compile(r"with 'C' linkage|linkage specification is incompatible|different kind|incompatible with \"")


def first_error(log: str) -> str:
    """The first error of a log, in one line; the first line that is no mere context where nothing is called an error.

    "" only where the log is blank.
    """
    lines = [line.strip("\r") for line in log.splitlines() if line.strip() and not _ECHO.match(line)]
    for line in lines:
        if "error" in kind(line) or kind(line) in ("Error", "fatal") or (not kind(line) and _LINKER.search(line)):
            return line.strip()
    told = [line for line in lines if not _CONTEXT.search(line) and not kind(line)]
    return next(iter(told or lines or log.split("\n")), "").strip()


def kind(line: str) -> str:
    """`error`, `warning`, `note` …, as the line calls itself; "" where it does not."""
    found = _KIND.search(line)
    return found["kind"] if found else ""


def contract_header(contract: Contract, way: Way = "", problem: Problem = PLAIN) -> str:
    """The text of HEADER. Its parameters are named in comments only, as a source may define M, N or A as macros."""
    # A source for a GPU that needs more of its element than the name includes that header, which takes a while.
    types = f"struct {contract.element(problem)};" if contract.stream else "#include <stddef.h>"
    entry = contract.declaration(problem, [f"/*{name}*/" for _, name in contract.parameters(problem)])
    sizer = sizer_declaration([f"/*{name}*/" for name in "MNK"])
    return f"{types}\n{entry}{' noexcept' if way else ''};\n{sizer};\n"


def checked_declarations(contract: Contract, compiled: Callable[[str, str], B], problem: Problem = PLAIN) -> B:
    """What `compiled(APPENDED, header)` makes of a source for a problem, whose errors in HEADER it explains.

    It is asked again where ENTRY throws nothing, and without either text where HEADER itself is in the way: behind a
    brace that is open, its lines stand in a function. What then compiles has hidden from the declarations, by a macro
    for one, and is refused.
    """
    made = compiled(APPENDED, contract_header(contract, problem=problem))
    if _EXCEPTIONS.search(_said(made)[1]):
        made = compiled(APPENDED, contract_header(contract, "throws nothing", problem))
    line, said = _said(made)
    if not said:
        return made
    if not _DIFFERENT.search(said):
        alone = compiled("", "")
        return made if alone.status is Status.OK else alone
    status, reason = _fault(made.log, line, said, contract.declaration(problem))
    log = f"{reason}\n{made.log}"[:LOG_BYTES]
    return msgspec.structs.replace(made, status=status, reason=reason, log=log)  # type: ignore[type-var]


def _said(made: Built) -> tuple[int, str]:
    """Line and text of the first error of a build, if it is in HEADER; else 0 and ""."""
    found = _AT_HEADER.match(first_error(made.log)) if made.status is Status.COMPILE_ERROR else None
    return (int(found[1] or found[2]), found[3]) if found else (0, "")


def _fault(log: str, line: int, said: str, entry: str) -> tuple[Status, str]:
    """What the error in that line of HEADER, of which the second declares `entry`, says about the source."""
    name, declared = (ENTRY, entry) if line == 2 else (SIZER, sizer_declaration())
    wanted = f"the contract declares {declared}"
    if _UNSEEN_BY_C.search(said):
        return Status.REJECTED, f'{name} is no extern "C" function; {wanted}'
    before = _BEFORE.search(log)
    other, _, parameters = (before[1] if before else "").partition(f" {name}(")
    returned = declared.removeprefix('extern "C" ').split(f" {name}(")[0]
    if "return type" in said or (parameters and _SIZES.get(other, other) != returned):
        return Status.COMPILE_ERROR, f"{name} must return {returned}{f', not {other}' if other else ''}; {wanted}"
    return Status.COMPILE_ERROR, f"{name} takes other parameters{f': ({parameters}' if parameters else ''}; {wanted}"
