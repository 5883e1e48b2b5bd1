"""Small changes of a kernel's text, one kind a module, for the proposer `mutation`.

To add one, add a file. Its `mutate(source, mate, rng)` returns the changed source, or None where it finds nothing to
change; `mate` is another good kernel for the same problem, and the same arguments must give the same answer. What it
returns need not be right, nor compile: the worker finds that out.
"""

import random
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

Mutate = Callable[[str, str, random.Random], str | None]


@cache
def kinds() -> dict[str, Mutate]:
    """All of them, by the name of their module."""
    return {found.name: import_module(f"{__name__}.{found.name}").mutate for found in iter_modules(__path__)}
