"""What is chosen by name and added as one file: a module of a certain folder, found by its file's name."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def module(folder: ModuleType, name: str, key: str) -> ModuleType:
    """The module `name` of the package `folder`; ValueError, with the names there are, where the configuration's
    `key` names none."""
    known = sorted(found.name for found in iter_modules(folder.__path__))
    if name not in known:
        raise ValueError(f"{key}={name} is not known; choose one of {', '.join(known)}")
    return import_module(f"{folder.__name__}.{name}")
