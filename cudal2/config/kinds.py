"""The keys that say which kind of product is asked for, beside its shape; records of several verbs have all four."""

from typing import Annotated, Protocol

from cudal2 import dtype as dtypes
from cudal2 import operators
from cudal2.config.base import LATER
from cudal2.problem import Accumulate, Layout, Problem, parse

Dtype = Annotated[str, LATER]
"""The name of a record in `cudal2.dtype`."""
Epilogue = Annotated[str, LATER]
"""The name of a file in `cudal2/operators`."""


class Kind(Protocol):
    """What a record of the configuration has that asks for problems."""

    @property
    def layout(self) -> Layout: ...
    @property
    def accumulate(self) -> Accumulate: ...
    @property
    def dtype(self) -> str: ...
    @property
    def epilogue(self) -> str: ...


def keys(kind: Kind) -> dict[str, str]:
    """All four and their values."""
    return {"layout": kind.layout, "accumulate": kind.accumulate, "dtype": kind.dtype, "epilogue": kind.epilogue}


def check(kind: Kind) -> None:
    """Raises ValueError, with the known names, for an unknown dtype or epilogue."""
    dtypes.find(kind.dtype)
    operators.known(kind.epilogue)


def problem(text: str, kind: Kind) -> Problem:
    """The problem that a user names; what the name leaves out is as `kind` says.

    Raises ValueError for what is no problem, or has a dtype or an epilogue that nobody knows.
    """
    found = parse(text, kind.layout, kind.accumulate, kind.dtype, kind.epilogue)
    operators.known(found.epilogue)
    return found
