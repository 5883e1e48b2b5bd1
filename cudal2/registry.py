"""Finds a module of a package by its name in the configuration, so that one can be added as a single file."""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def names(folder: ModuleType) -> tuple[str, ...]:
    """The names of a package's modules, in alphabetical order."""
    return tuple(sorted(found.name for found in iter_modules(folder.__path__)))


def module(folder: ModuleType, name: str, key: str) -> ModuleType:
    """The module `name` of the package `folder`; ValueError, which lists the known names, where there is none. `key` is
    the configuration's key for it."""
    full = f"{folder.__name__}.{name}"
    if full not in sys.modules:  # a folder is listed once for each name: some are asked for in every call
        check(folder, name, key)
    return import_module(full)


def check(folder: ModuleType, name: str, key: str) -> None:
    """Raises the ValueError of `module`, and imports nothing."""
    known = names(folder)
    if name not in known:
        raise ValueError(f"{key}={name} is not known; choose one of {', '.join(known)}")
