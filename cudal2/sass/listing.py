"""The instructions of one kernel of a cubin, with the registers that each defines and uses.

nvdisasm from 13.2 on knows all registers that an instruction reads and writes, also those that its text does not name
(the second half of a pair, the 64 accumulators of an HGMMA). `-plr -lrm narrow` prints a column for each register, with
`^` for written, `v` for read, `x` for both. Barrier registers (B0) have no column; instructions that use them are
pinned.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from cudal2.worker.build import Unfinished
from cudal2.worker.cuda.compile import cubin, sass
from cudal2.worker.cuda.compile.cubin import NO_BARRIER, Controls, controls_of, with_controls
from cudal2.worker.sandbox import jail

SECONDS = 30.0
"""Wall time that the disassembler may take; a kernel of 700 instructions takes 0.3 s."""
OPTIONS = ("-plr", "-lrm", "narrow")
_OLD = b"\x33"
"""The ABI in the ELF header of cubins before CUDA 13."""
_NOP = 0x918
"""The low twelve bits of a NOP's word, its operation."""
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+),")
_TARGET = re.compile(r"^\s*\.target\s+(\w+)")
_LABEL = re.compile(r"^([.$\w]+):")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(@!?U?P\w+)?\s*([A-Z][\w.]*)\s*([^;]*?)\s*;")
_JUMP = re.compile(r"`\(([^)+]+)\)")
_NONE = Controls(0, 0, NO_BARRIER, NO_BARRIER, 0, 0)
_LETTERS = {"GPR": "R", "PRED": "P", "UGPR": "UR", "UPRED": "UP"}
"""Prefixes of register names, by the heading of their columns."""
_FILES = {"PR": "P", "UPR": "UP"}
"""Operands that stand for all predicates at once, in P2R and R2P; nvdisasm marks none of them."""
_PREDICATES = 7


class Unlisted(ValueError):
    """The cubin cannot be listed; the message says why, and what to do."""


class Instruction(msgspec.Struct, frozen=True):
    """One instruction: its position in the compiler's order (`origin`, from 0), its word, and what nvdisasm says.

    `guard` is `@!P0` or empty. Registers are named `R4`, `P0`, `UR6`, `UP0`; constant ones (RZ, PT) are left out; the
    guard is among `uses`. `compiled` are the scheduling fields as the compiler set them. `target` is the
    position that a branch goes to. `named`: something other than a branch refers to this place by its offset, so the
    instruction must stay there.
    """

    origin: int
    word: bytes
    guard: str
    opcode: str
    operands: str
    defines: frozenset[str]
    uses: frozenset[str]
    controls: Controls
    compiled: Controls
    target: int | None = None
    named: bool = False

    @property
    def operation(self) -> str:
        """The opcode without its modifiers: `LDG`."""
        return self.opcode.partition(".")[0]

    @property
    def text(self) -> str:
        """The assembly text: `@!P0 IADD3 R3, R3, 0x1, RZ`."""
        return " ".join(part for part in (self.guard, self.opcode, self.operands) if part)


class Listing(msgspec.Struct, frozen=True):
    """The instructions of one kernel in their present order; `architecture` is nvdisasm's name, such as `sm_90a`."""

    kernel: str
    architecture: str
    instructions: tuple[Instruction, ...]

    def swapped(self, position: int) -> "Listing":
        """The listing after the instruction there and the next have changed places, scheduling fields and all."""
        first, second = self.instructions[position : position + 2]
        return self._with(position, second, first)

    def controlled(self, position: int, controls: Controls) -> "Listing":
        """The listing with the scheduling fields of one instruction set."""
        old = self.instructions[position]
        word = with_controls(old.word, controls)
        return self._with(position, msgspec.structs.replace(old, word=word, controls=controls))

    def _with(self, position: int, *new: Instruction) -> "Listing":
        instructions = self.instructions
        return Listing(
            self.kernel, self.architecture, (*instructions[:position], *new, *instructions[position + len(new) :])
        )


def read(code: bytes, kernel: str, kind: jail.Kind, seconds: float = SECONDS) -> Listing:
    """The listing of a kernel, named as in the cubin; the disassembler runs in a jail of that kind.

    Raises Unlisted where the cubin is damaged or holds no such kernel, `build.Unfinished` where the
    disassembler was stopped, HarnessFault where there is no disassembler or no jail.
    """
    try:
        start, size = cubin.code_of(code, kernel)
    except ValueError as error:
        raise Unlisted(f"{error}; compile the kernel anew, or name one that the cubin holds") from error
    try:
        with sass.listing(code, kind, seconds, OPTIONS) as lines:
            listing = parse((line.decode(errors="replace") for line in lines), kernel)
    except (Unlisted, Unfinished):
        raise
    except ValueError as error:
        raise Unlisted(_unreadable(code, error)) from error
    words = [code[place : place + cubin.WORD] for place in range(start, start + size, cubin.WORD)]
    listed = listing.instructions
    # When nvdisasm prints columns, it leaves out the NOPs that fill up the last line of the instruction cache.
    filling = words[len(listed) :]
    if len(listed) > len(words) or any(int.from_bytes(word[:2], "little") & 0xFFF != _NOP for word in filling):
        raise Unlisted(
            f"nvdisasm lists {len(listed)} of the {len(words)} instructions of {kernel[:60]}; a newer one may know the "
            "others: pip install --upgrade nvidia-cuda-nvdisasm"
        )
    nop = Instruction(0, b"", "", "NOP", "", frozenset(), frozenset(), _NONE, _NONE)
    listed += tuple(msgspec.structs.replace(nop, origin=len(listed) + more) for more in range(len(filling)))
    return Listing(
        kernel,
        listing.architecture,
        tuple(
            msgspec.structs.replace(instruction, word=word, controls=fields, compiled=fields)
            for instruction, word, fields in zip(listed, words, map(controls_of, words))
        ),
    )


def _unreadable(code: bytes, error: ValueError) -> str:
    """Why nvdisasm printed no listing, as far as the cubin shows it, and what to do."""
    if code[7:8] == _OLD:
        return (
            "the cubin is written as CUDA 12 did, and nvdisasm does not tell the registers of such; assemble it by the "
            "ptxas of CUDA 13 (Triton: set TRITON_PTXAS_PATH)"
        )
    try:
        cubin.elf_symbols(code, ".symtab")
    except ValueError:
        return "the cubin is stripped of its symbols, and nvdisasm reads none such; compile the kernel anew"
    return (
        f"{error}: the cubin is damaged, or holds an instruction unknown to nvdisasm; compile the kernel anew, or "
        "pip install --upgrade nvidia-cuda-nvdisasm"
    )


def parse(lines: Iterable[str], kernel: str) -> Listing:
    """Parses nvdisasm's output for one kernel; words and scheduling fields, which it does not have, stay empty."""
    architecture, here, heading = "", False, list[str]()
    columns: list[tuple[int, str]] = []
    labels: dict[str, int] = {}
    rows: list[tuple[re.Match[str], str]] = []
    for line in lines:
        if hit := _TARGET.match(line):
            architecture = hit.group(1)
        elif hit := _SECTION.match(line):
            here = hit.group(1).strip('"') == kernel
        elif here:
            code, _, marks = line.rstrip("\n").partition(" // ")
            if hit := _LABEL.match(code):
                labels.setdefault(hit.group(1), len(rows))
            elif hit := _INSTRUCTION.match(code):
                columns = columns or _columns(heading)
                rows.append((hit, marks))
            elif not rows and marks.startswith("|"):
                heading.append(marks)
    if not rows or not columns:
        raise Unlisted(
            f"nvdisasm shows no registers of {kernel[:60]}: it must be 13.2 or later; pip install nvidia-cuda-nvdisasm"
        )
    return Listing(kernel, architecture, tuple(_instructions(rows, columns, labels)))


def _instructions(
    rows: list[tuple[re.Match[str], str]], columns: list[tuple[int, str]], labels: dict[str, int]
) -> Iterable[Instruction]:
    # A RET names the function that it goes back into, and goes where a register says.
    jumps = [_JUMP.search(hit.group(4)) if not hit.group(3).startswith("RET") else None for hit, _ in rows]
    targets = [labels.get(jump.group(1)) if jump else None for jump in jumps]
    # nvdisasm gives a label to every offset that .nv.info lists too; those no branch goes to are such.
    named = set(labels.values()) - set(targets)
    for place, ((hit, marks), target) in enumerate(zip(rows, targets)):
        offset, guard, opcode, operands = hit.groups()
        if int(offset, 16) != place * cubin.WORD:
            raise Unlisted(f"nvdisasm skips an instruction before {offset}; the cubin is damaged: compile it anew")
        marked = {name: marks[column] for column, name in columns if column < len(marks) and marks[column] in "^vx"}
        marked |= _masked(operands)
        yield Instruction(
            origin=place,
            word=b"",
            guard=guard or "",
            opcode=opcode,
            operands=operands,
            defines=frozenset(name for name, mark in marked.items() if mark in "^x" and not _spurious(opcode, name)),
            uses=frozenset(name for name, mark in marked.items() if mark in "vx" and not _passed(opcode, guard, name)),
            controls=_NONE,
            compiled=_NONE,
            target=target,
            named=place in named,
        )


def _masked(operands: str) -> dict[str, str]:
    """The predicates that an operand `PR` stands for, with their marks: those in the mask at the end, or all.

    Found by fuzzing on an H200: a P2R two cycles behind the ISETP whose result it saves got what was there before.
    """
    names = [operand.strip() for operand in operands.split(",")]
    mask = int(names[-1], 16) if names[-1].startswith("0x") else -1
    return {
        f"{_FILES[operand]}{number}": "v" if place else "^"
        for place, operand in enumerate(names)
        if operand in _FILES
        for number in range(_PREDICATES)
        if mask >> number & 1
    }


def _spurious(opcode: str, register: str) -> bool:
    """Whether a mark for a write is wrong: an LDGSTS only reads its predicate, which masks the bytes; and the registers
    that a CALL is marked to write are written by the function's own instructions.
    """
    return opcode.startswith("CALL") or (opcode.startswith("LDGSTS") and register.startswith("P"))


def _passed(opcode: str, guard: str | None, register: str) -> bool:
    """Whether it is the function that reads a register which a CALL is marked to read: all but the CALL's guard."""
    return opcode.startswith("CALL") and register != (guard or "").lstrip("@!")


def _columns(heading: list[str]) -> list[tuple[int, str]]:
    """The register of each column of marks; `# 01234` begins a kind of registers, which the first line names."""
    if len(heading) < 2:
        return []
    last, columns = _digits(heading), []
    bars = [place for place, letter in enumerate(last) if letter == "|"]
    for left, right in pairwise(bars):
        letters = _LETTERS.get(heading[0][left + 1 : right].strip())
        first = last.find("#", left, right) + 2
        if letters is None or first < 2:
            raise Unlisted("nvdisasm prints its registers in a way unknown here; pip install nvidia-cuda-nvdisasm")
        columns += [(place, f"{letters}{place - first}") for place in range(first, len(last[:right].rstrip()))]
    return columns


def _digits(heading: list[str]) -> str:
    """The heading's line with the last digits of the registers' numbers."""
    return next(line for line in reversed(heading) if "#" in line)
