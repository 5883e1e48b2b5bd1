"""How much the exhaustive tests try: all of it if THOROUGH=1 is set, else a part that every change can wait for."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

THOROUGH = os.environ.get("THOROUGH", "") not in ("", "0")
only_thorough = pytest.mark.skipif(not THOROUGH, reason="other tests show most of it; THOROUGH=1 runs it")


def count(everything: int, part: int) -> int:
    """How many are tried: `everything` of them, or a part."""
    return everything if THOROUGH else part


def some(cases: Sequence[T], every: int) -> Sequence[T]:
    """All cases, or one of `every` so many in a row."""
    return cases if THOROUGH else cases[::every]
