"""Is an edit harmless? It is replayed on the compiler's listing, and the result is checked against the rules.

A listing of the edited cubin would not be enough: it does not show which instructions have passed one another.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from cudal2.records import Control, Edit
from cudal2.sass.dependence import Checker, Violation, violations
from cudal2.sass.listing import Listing, read
from cudal2.worker.cuda.compile import cubin
from cudal2.worker.cuda.compile.cubin import controls_of
from cudal2.worker.sandbox import jail


def replayed(listing: Listing, edit: Edit) -> Listing:
    """The listing after the moves of an edit of its kernel, which `cubin.apply` accepts."""
    instructions = list(listing.instructions)
    for move in edit.moves:
        if isinstance(move, Control):
            word = cubin.with_field(instructions[move.position].word, move.field, move.value)
            new = msgspec.structs.replace(instructions[move.position], word=word, controls=controls_of(word))
            instructions[move.position] = new
        else:
            instructions.insert(move.end, instructions.pop(move.start))
    return Listing(listing.kernel, listing.architecture, tuple(instructions))


class Legality:
    """Checks edits of one cubin; a `Legal` for `worker.cuda.edit_bench.EditBench`. A context manager.

    A check takes 0.05 to 0.2 s of a core. With `jobs`, several run side by side, in processes that import the main
    module as `multiprocessing` does.
    """

    def __init__(self, code: bytes, kind: jail.Kind, jobs: int = 1) -> None:
        self._code, self._kind, self._jobs = code, kind, jobs
        self._listings: dict[str, Listing] = {}
        self._checkers: dict[str, Checker] = {}
        self._excused: dict[str, set[tuple[str, int, int]]] = {}
        """Violations in the compiler's own schedule, by kernel: a rule does not know something there."""
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Legality":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def listing(self, kernel: str) -> Listing:
        """The compiler's schedule of a kernel. Raises Unlisted, HarnessFault."""
        if kernel not in self._listings:
            self._listings[kernel] = read(self._code, kernel, self._kind)
        return self._listings[kernel]

    def __call__(self, edits: Sequence[Edit]) -> Iterator[str]:
        """For each edit why it is not harmless, "" where it is. Raises Unlisted where it cannot be checked."""
        if self._jobs < 2 or len(edits) < 2:
            return (self.why_not(edit) for edit in edits)
        if self._pool is None:
            for edit in edits:
                self.listing(edit.kernel)
            given = (self._code, self._kind, self._listings)
            self._pool = ProcessPoolExecutor(self._jobs, get_context("spawn"), _begin, given)
        return self._pool.map(_why_not, edits)

    def why_not(self, edit: Edit) -> str:
        """The first rule that an edit breaks, or why it does not fit; empty where it is harmless."""
        try:
            start, size = cubin.code_of(self._code, edit.kernel)
            edited = cubin.apply(self._code, edit)[start : start + size]
        except cubin.EditRefused as refused:
            return str(refused)
        compiled = self.listing(edit.kernel)
        schedule = replayed(compiled, edit)
        assert b"".join(instruction.word for instruction in schedule.instructions) == edited
        if edit.kernel not in self._excused:
            self._checkers[edit.kernel] = Checker(compiled)
            self._excused[edit.kernel] = {_pair(compiled, violation) for violation in violations(compiled)}
        excused = self._excused[edit.kernel]
        broken = (
            violation
            for violation in violations(schedule, self._checkers[edit.kernel])
            if _pair(schedule, violation) not in excused
        )
        return next((f"{violation.rule} at {violation.position}: {violation.why}" for violation in broken), "")


def _pair(listing: Listing, violation: Violation) -> tuple[str, int, int]:
    """A broken rule and the two instructions that break it, by their origins."""
    instructions = listing.instructions
    return violation.rule, instructions[violation.position].origin, instructions[violation.earlier].origin


_here: Legality


def _begin(code: bytes, kind: jail.Kind, listings: dict[str, Listing]) -> None:
    """Initialises a process of the pool."""
    global _here
    _here = Legality(code, kind)
    _here._listings = listings


def _why_not(edit: Edit) -> str:
    return _here.why_not(edit)
