"""The kernels and functions of a PTX file, and their statements.

A source can put any text into its PTX by inline assembly, even whole kernels, so this reads what compilers and people
write and refuses the rest: white space within an instruction's name, a preprocessor's directives, file names.
A word with % is a special register unless it has the form of the names that compilers make, %rd7: one letter or two,
and a number. A source that declares another is refused, for ptxas gives `.reg .b32 %gridid;` the special register's
value until it is written. Blocks in braces may declare one name again: it is another register there, which `Statement`
tells apart by the number of its block.

PTX ISA 9.0, "Syntax", "Directives", "State Spaces" and "Identifiers".
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

NAME = r"[%\w$]+"
WORD = re.compile(rf"(?<![\w$.%]){NAME}")
OWN = re.compile(r"%(?:SPL|tmp|(?!pm)[a-zA-Z]{1,2}\d*)")
"""Words with % that are no special registers: no name of theirs is so short but %pm0; nvcc has the first two."""
_DECLARATION = re.compile(r"\.reg\s+\.\w+\s+(.*)", re.DOTALL)
_REGISTER = re.compile(rf"({NAME})\s*(?:<\s*([1-9]\d{{0,8}})\s*>)?")
BYTES = 16 << 20
"""Longest text that is read; CUTLASS's longest have 3 MB."""
DEEPEST = 64
"""Blocks within each other; inline assembly has two or three."""
DIGITS = 9
"""Longest number of a register."""
_SPACE = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_HEAD = re.compile(
    rf"\.(?P<kind>entry|func)\b\s*(?:\.noreturn\s*|\([^(){{}};]*\)\s*)*(?P<symbol>{NAME})\s*"
    r"(?:\((?P<declared>[^(){};]*)\))?"
    r"(?P<more>[^(){};]*)(?P<end>[{;])"
)
_DECLARED = re.compile(
    rf"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z]+(?P<bits>\d+)\s+(?:\.ptr\s+(?:\.[a-z]+\s+)?(?:\.align\s+\d+\s+)?)?"
    rf"(?P<name>{NAME})\s*(?:\[\s*(?P<count>[1-9]\d*)\s*\])?\s*"
)
_LEADING = re.compile(rf"(?:\s|[{{}}]|{NAME}\s*:(?!:))*")
_INSTRUCTION = re.compile(
    rf"(?:@\s*(?:!\s*)?(?P<guard>{NAME})\s+)?(?P<name>[a-z]\w*(?:(?:\.|::)\w+)*)(?P<operands>(?:\s+[^.\s].*)?)",
    re.DOTALL,
)
# Not: tables of branches and prototypes of calls, through which a kernel could run its data as instructions.
_ALLOWED = re.compile(r"\.(?:shared|local|pragma)\b")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|0|[1-9]\d{0,18})")


class Registers:
    """The registers that the open blocks declare, followed from statement to statement.

    `families` are the beginnings of names that are declared by their number anywhere in the body: %r of `%r<9>`. `met`
    are the registers that were named where a block declared them, as `named` calls them.
    """

    def __init__(self) -> None:
        self.families: set[str] = set()
        self.met: set[str] = set()
        # The number of each open block; its names, with the number of those that begin so, or 0 for the name itself.
        self._open: list[tuple[int, dict[str, int]]] = [(0, {})]
        self._blocks = 0

    def scopes(self, text: str) -> None:
        """Opens and closes the blocks whose braces are in this text between two statements."""
        for brace in re.findall(r"[{}]", text):
            if brace == "{":
                self._blocks += 1
                self._open.append((self._blocks, {}))
                if len(self._open) > DEEPEST:
                    raise ValueError(f"the PTX has more than {DEEPEST} blocks within each other")
            elif len(self._open) == 1:
                raise ValueError("the PTX closes a block that it did not open")
            else:
                self._open.pop()

    def declare(self, text: str) -> None:
        """Takes in a statement with `.reg`. Raises ValueError where it is not understood."""
        found = _DECLARATION.fullmatch(text)
        names = [_REGISTER.fullmatch(part.strip()) for part in found[1].split(",")] if found else [None]
        for name in names:
            short = " ".join(text.split())[:60]
            if not name or re.search(r"\.v\d", text):
                raise ValueError(f"{short}: it is no plain register, and registers of several parts are not followed")
            if "%" in name[1] and not OWN.fullmatch(name[1]):
                raise ValueError(f"{short}: so a special register may be called; a name without % is no such")
            self._open[-1][1][name[1]] = int(name[2] or 0)
            if name[2]:
                self.families.add(name[1])

    def named(self, word: str) -> str:
        """A name for the register that this word is here, its own for each; the word, if no block declares it."""
        for number, block in reversed(self._open):
            if self._within(block, word):
                name = f"{word}%{number}" if number else word
                self.met.add(name)
                return name
        return word

    @staticmethod
    def _within(block: dict[str, int], word: str) -> bool:
        if block.get(word) == 0:
            return True
        stem = len(word.rstrip("0123456789"))
        ends = range(max(stem, len(word) - DIGITS), len(word)) if block else ()
        return any(int(word[end:]) < block.get(word[:end], 0) for end in ends)


class Statement(NamedTuple):
    """An instruction: the parts of its name, the text of its operands, the special registers in it, its guard's too;
    and its guard and operands with each register called as `Registers.named` does."""

    name: tuple[str, ...]
    operands: str
    special: tuple[str, ...]
    guard: str
    registers: str

    def __str__(self) -> str:
        return f"{'.'.join(self.name)} {' '.join(self.operands.split())[:60]}"


class Body(NamedTuple):
    """A kernel (or else a function): bytes of its parameters, and of those of the calls it makes, by name; the words
    that are registers of its own."""

    kernel: bool
    parameters: dict[str, int]
    called: dict[str, int]
    statements: tuple[Statement, ...]
    registers: frozenset[str]


def bodies(ptx: str) -> Iterator[Body]:
    """All kernels and functions that a PTX file defines. Raises ValueError where something in it is not understood."""
    if len(ptx) > BYTES:
        raise ValueError(f"the PTX is longer than {BYTES >> 20} MiB")
    text = _SPACE.sub(_blank, ptx)
    if '"' in text.replace('""', "") or re.search(r"^[^\S\n]*#", text, re.MULTILINE):
        raise ValueError("the PTX has a preprocessor's directive, or a string without an end")
    heads = list(_HEAD.finditer(text))
    unclear = (head for head in heads if "pragma" in head["more"] or (head["kind"] == "entry" and head["end"] == ";"))
    if len(heads) != len(re.findall(r"\.(?:entry|func)\b", text)) or any(unclear):
        raise ValueError("the PTX has a kernel or a function whose head is not understood")
    symbols, outside, end = {head["symbol"] for head in heads}, [], 0
    for head in heads:
        outside.append(text[end : head.start()])
        end = head.end()
        if head["end"] == "{":
            declared = dict(_declared(part) for part in (head["declared"] or "").split(",") if part.strip())
            block = _block(text, head.end())
            end += len(block)
            yield _body(head["kind"] == "entry", declared, block, symbols)
    if taken := symbols.intersection(WORD.findall(" ".join([*outside, text[end:]]))):
        raise ValueError(f"the address of {min(taken)[:60]} is taken")


def number(text: str) -> int:
    """The value of a decimal or hexadecimal number; ValueError for any other text."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:30]} is no plain number")
    return int(text, 0)


def _blank(found: re.Match[str]) -> str:
    text = found.group()
    if text[0] == '"':
        if re.search(r"//|/\*|\*/|\\", text):
            raise ValueError("a string in the PTX looks like a comment")
        return '""'
    if text.startswith("/*") and (len(text) < 4 or not text.endswith("*/")):
        raise ValueError("the PTX has a comment without an end")
    return " "


def _declared(text: str) -> tuple[str, int]:
    found = _DECLARED.fullmatch(text.strip())
    if not found or found["name"].startswith("%"):  # or else a register might have its name
        raise ValueError(f"the parameter {' '.join(text.split())[:60]} is not understood")
    return found["name"], int(found["bits"]) // 8 * int(found["count"] or 1)


def _block(text: str, start: int) -> str:
    """The text from `start`, which is just behind a brace, to the brace that closes it."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            return text[start : brace.start()]
    raise ValueError("the PTX ends within a function")


def _body(kernel: bool, parameters: dict[str, int], text: str, symbols: set[str]) -> Body:
    called: dict[str, int] = {}
    statements, registers, words = [], Registers(), set[str]()
    for part in text.split(";"):
        leading = _LEADING.match(part).group()  # type: ignore[union-attr]
        registers.scopes(leading)
        part = part[len(leading) :].strip()
        if part.startswith(".param"):
            name, size = _declared(part)
            if name in parameters:
                raise ValueError(f"{name[:60]} is declared twice")
            called[name] = max(size, called.get(name, 0))  # each call has its own of that name
        elif part.startswith(".reg"):
            registers.declare(part)
        elif part and _ALLOWED.match(part):
            if "%" in part:
                raise ValueError(f"{' '.join(part.split())[:60]} is not understood")
        elif part:
            found = _INSTRUCTION.fullmatch(part)
            if not found:
                raise ValueError(f"{' '.join(part.split())[:60]} is not understood, or not allowed")
            operands, guard = found["operands"].strip(), found["guard"] or ""
            special = tuple(word for word in WORD.findall(part) if "%" in word and not OWN.fullmatch(word))
            plain = WORD.findall(operands)
            named = WORD.sub(lambda word: registers.named(word.group()), operands)
            parts = tuple(re.split(r"\.|::", found["name"]))
            statement = Statement(parts, operands, special, registers.named(guard), named)
            _check_code_stays(statement, [word for word in plain if word in symbols])
            statements.append(statement)
            words.update((guard, *plain))
    _check_names(words, registers.families)
    return Body(kernel, parameters, called, tuple(statements), frozenset(registers.met))


def _check_code_stays(statement: Statement, code: list[str]) -> None:
    """Raises ValueError where a statement names kernels or functions but to call one: who has their address could read
    or write instructions."""
    if len(code) > (statement.name[0] == "call"):
        raise ValueError(f"{statement} takes the address of {code[0][:60]}")


def _check_names(words: set[str], families: set[str]) -> None:
    """Raises ValueError where a register has a second name: of `.reg .b64 %r<9>` ptxas takes %r01 for %r1, too."""
    for word in words:
        stem = len(word.rstrip("0123456789"))
        if len(word) - stem > 4 * DIGITS:
            raise ValueError(f"{word[:60]} has too many digits")
        for end in range(stem, len(word)):
            if word[:end] in families and not re.fullmatch(r"0|[1-9]\d{0,8}", word[end:]):
                raise ValueError(f"{word[:60]} is another name of a register")
