"""The journal of a search: every measurement, in a file of JSON lines, so that a killed search can continue.

Given the same answers a search asks the same questions. So with the answers in its journal it comes back to its state.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cudal2.records import Edit, Measured, Status
from cudal2.sass.game.task import Spent

PATIENCE = 20
"""A search may ask so many times its budget for edits measured before; then it is taken to have converged."""


RETIRED = {"search.fit": 0}
"""Keys that older journals name, at the values at which they changed nothing."""


class Line(msgspec.Struct, frozen=True):
    """One measurement and the seconds that it took."""

    edit: Edit
    measured: Measured
    seconds: float = 0.0


class Journal:
    """The measurements of one search, which `head` identifies: its kernel, its configuration, its judge.

    Raises ValueError where the file belongs to another search.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path, self.known = path, dict[Edit, Line]()
        head = msgspec.json.decode(msgspec.json.encode(head))
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        found = msgspec.json.decode(whole[0]) if whole else head
        found = {key: value for key, value in found.items() if RETIRED.get(key) != value or key in head}
        if found != head:
            keys = ", ".join(key for key in {**head, **found} if head.get(key) != found.get(key))
            raise ValueError(f"{path} is of another search (other {keys}); choose another run=, or remove the file")
        for line in whole[1:]:
            one = msgspec.json.decode(line, type=Line)
            self.known[one.edit] = one
        if len(whole) < len(lines) or not whole:  # new, or torn by a kill
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(".tmp")
            fresh.write_bytes(b"".join(whole or [msgspec.json.encode(head) + b"\n"]))
            fresh.replace(path)

    def add(self, line: Line) -> None:
        """Appends a measurement, so that a kill does not lose it."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self.known[line.edit] = line


class Budget:
    """Measures for a search: each edit once, and `limit` edits in all; then it raises Spent.

    The unedited kernel counts as exactly as fast as itself. `measure` is called with an edit and the greatest lower
    bound so far, `told` with each edit that counts and whether it is `new` in the journal.
    """

    def __init__(
        self,
        journal: Journal,
        measure: Callable[[Edit, float], Measured],
        limit: int,
        told: Callable[["Budget", Line, bool], None] = lambda budget, line, new: None,
    ) -> None:
        self._journal, self._measure, self.limit, self._told = journal, measure, limit, told
        self.seen: dict[Edit, Line] = {}
        self.best: Line | None = None
        """The correct edit with the greatest lower bound of its speedup."""
        self._asked = 0

    def __call__(self, edit: Edit) -> Measured:
        """The measurement of an edit, old or new. Raises Spent."""
        self._asked += 1
        if self._asked > PATIENCE * self.limit:
            raise Spent
        if not edit.moves:
            return Measured(Status.OK, 1.0, 1.0, 1.0)
        if edit in self.seen:
            return self.seen[edit].measured
        if len(self.seen) >= self.limit:
            raise Spent
        line = self._journal.known.get(edit)
        new = line is None
        if line is None:
            started = time.perf_counter()
            measured = self._measure(edit, max(1.0, self.best.measured.low) if self.best else 1.0)
            line = Line(edit, measured, time.perf_counter() - started)
            self._journal.add(line)
        self.seen[edit] = line
        if line.measured.status is Status.OK and (self.best is None or line.measured.low > self.best.measured.low):
            self.best = line
        self._told(self, line, new)
        return line.measured
