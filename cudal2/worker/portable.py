"""What a kernel is outside of the judge: what is exported of it, and for which rows; and code that a candidate brings
along, which was exported before."""

import hashlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from cudal2.records import Binary, Candidate, HarnessFault

L = TypeVar("L")
BINARY_REMEDY = "Export it again, or bring the folder anew from where it was exported"


class NotPortable(ValueError):
    """The kernel runs only with its author's host code; the message says why."""


class Portable(msgspec.Struct, frozen=True):
    """What a user needs of a kernel, without any worker: a processor's shared object, or a GPU's cubin and the recipe
    of its launches. `rows` are the first and the last number of rows that it is for, none where it is for one.
    """

    code: bytes
    recipe: bytes = b""
    rows: tuple[int, int] | None = None


def right_rows(candidate: Candidate, rows: Iterable[int], right: Callable[[Candidate], L | None]) -> dict[int, L]:
    """What `right` gives of the candidate at each of these numbers of rows, down and up from its own to the first for
    which that is nothing."""
    wanted, by_rows = set(rows), {}
    for step in (-1, 1):
        m = candidate.problem.m + step
        while m in wanted:
            problem = msgspec.structs.replace(candidate.problem, m=m)
            made = right(msgspec.structs.replace(candidate, problem=problem))
            if made is None:
                break
            by_rows[m] = made
            m += step
    return by_rows


def row_range(rows: Iterable[int], own: int) -> tuple[int, int] | None:
    """The first and the last of these numbers that lead to `own` without a gap; None where there is no other."""
    known, first, last = {own, *rows}, own, own
    while first - 1 in known:
        first -= 1
    while last + 1 in known:
        last += 1
    return None if first == last else (first, last)


def end_rows(rows: tuple[int, int], own: int) -> tuple[int, ...]:
    """The first and the last of these numbers, as far as they are others than `own`."""
    return tuple(m for m in dict.fromkeys(rows) if m != own)


def good_rows(rows: tuple[int, int], own: int, good: Collection[int]) -> tuple[int, int]:
    """The part of `rows` about `own` whose ends are good: on either side all, or nothing."""
    first, last = rows
    return first if first in good else own, last if last in good else own


def read_binary(binary: Binary) -> tuple[bytes, bytes]:
    """The code, and the recipe of a GPU's (else nothing).

    Raises HarnessFault where a file cannot be read, or holds something else than was written into it.
    """
    return _unchanged(*binary.code), _unchanged(*binary.recipe) if binary.recipe else b""


def _unchanged(path: str, sha256: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise HarnessFault(f"{path} cannot be read: {error.strerror}", BINARY_REMEDY) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise HarnessFault(f"{path} is damaged: its digest is another", BINARY_REMEDY)
    return data
