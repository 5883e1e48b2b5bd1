"""For which numbers of rows one kernel is exported: its own, and those about it without a gap at which it is right;
and for which of them it is dispatched."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec

from cudal2.records import Candidate

L = TypeVar("L")


def right_about(candidate: Candidate, rows: Iterable[int], right: Callable[[Candidate], L | None]) -> dict[int, L]:
    """What `right` gives of the candidate at each of these numbers of rows, down and up from its own to the first for
    which that is nothing."""
    wanted, found = set(rows), {}
    for step in (-1, 1):
        m = candidate.problem.m + step
        while m in wanted:
            problem = msgspec.structs.replace(candidate.problem, m=m)
            made = right(msgspec.structs.replace(candidate, problem=problem))
            if made is None:
                break
            found[m] = made
            m += step
    return found


def range_about(rows: Iterable[int], own: int) -> tuple[int, int] | None:
    """The first and the last of these numbers that lead to `own` without a gap; None where there is no other."""
    known, first, last = {own, *rows}, own, own
    while first - 1 in known:
        first -= 1
    while last + 1 in known:
        last += 1
    return None if first == last else (first, last)


def ends(rows: tuple[int, int], own: int) -> tuple[int, ...]:
    """The first and the last of these numbers, as far as they are others than `own`."""
    return tuple(m for m in dict.fromkeys(rows) if m != own)


def between(rows: tuple[int, int], own: int, good: Collection[int]) -> tuple[int, int]:
    """The part of `rows` about `own` whose ends are good: on either side all, or nothing."""
    first, last = rows
    return first if first in good else own, last if last in good else own
