"""Which words of a PTX body are registers that it declares, at each place: any other word with % is a special register.

A block in braces may declare a register of a special one's name, as `.reg .b32 %gridid;`, and hide it up to the end of
the block; behind that the name is the special register's again. PTX ISA 9.0, "State Spaces" and "Identifiers".
"""

import re
from collections.abc import Iterator

NAME = r"[%\w$]+"
WORD = re.compile(rf"(?<![\w$.%]){NAME}")
_DECLARATION = re.compile(r"\.reg\s+\.\w+\s+(.*)", re.DOTALL)
_REGISTER = re.compile(rf"({NAME})\s*(?:<\s*([1-9]\d*)\s*>)?")


class Registers:
    """The registers that the open blocks declare, followed from statement to statement.

    `families` are the beginnings of names that are declared by their number anywhere in the body: %r of `%r<9>`. `met`
    are the words that a block declared where they stood.
    """

    def __init__(self) -> None:
        self.families: set[str] = set()
        self.met: set[str] = set()
        self._open: list[dict[str, int]] = [
            {}
        ]  # names, with the number of those that begin so, or 0 for the name itself
        self._outermost: set[str] = set()  # words that were found there

    def scopes(self, text: str) -> None:
        """Opens and closes the blocks whose braces are in this text between two statements."""
        for brace in re.findall(r"[{}]", text):
            if brace == "{":
                self._open.append({})
            elif len(self._open) == 1:
                raise ValueError("the PTX closes a block that it did not open")
            else:
                self._open.pop()

    def declare(self, text: str) -> None:
        """Takes in a statement with `.reg`. Raises ValueError where it is not understood."""
        found = _DECLARATION.fullmatch(text)
        names = [_REGISTER.fullmatch(part.strip()) for part in found[1].split(",")] if found else [None]
        for name in names:
            if not name or re.search(r"\.v\d", text):
                short = " ".join(text.split())[:60]
                raise ValueError(f"{short}: it is no plain register, and registers of several parts are not followed")
            self._open[-1][name[1]] = int(name[2] or 0)
            if name[2]:
                self.families.add(name[1])

    def undeclared(self, text: str) -> Iterator[str]:
        """The words with % in a statement that no open block declares so far."""
        for word in WORD.findall(text):
            if word in self._outermost:
                continue
            if self._within(self._open[0], word):
                self._outermost.add(word)
            elif not any(self._within(block, word) for block in self._open[1:]):
                if "%" in word:
                    yield word
                continue
            self.met.add(word)

    @staticmethod
    def _within(block: dict[str, int], word: str) -> bool:
        if block.get(word) == 0:
            return True
        number = len(word)
        while number and word[number - 1] in "0123456789":
            number -= 1
            count = block.get(word[:number], 0)
            if int(word[number:]) < count:
                return True
        return False
