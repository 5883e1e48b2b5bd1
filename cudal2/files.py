"""What ships, by name: files, and modules that are one file each (`plugin`); and files written atomically."""

import ctypes
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent


def asset(*parts: str) -> Path:
    """Path of a shipped file or folder, e.g. `asset("data", "families", "cpu")`. `conf/`, `prompts/` and `data/` are
    beside the package in a checkout, and inside it in a wheel.

    Raises FileNotFoundError when it is in neither place (a broken installation).
    """
    for root in (_PACKAGE.parent, _PACKAGE / "_assets"):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"{'/'.join(parts)} is not part of this installation; reinstall cudal2")


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically: a process that is killed meanwhile leaves the old file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def install(new: Path, final: Path, former: Path) -> None:
    """Replaces a folder, `final`, by `new`; programs that have the former's libraries open keep them.

    A kill meanwhile leaves one of the two in place, except on a file system that cannot exchange two folders.
    """
    if final.is_dir() and _exchanged(new, final):
        return
    if final.exists():
        if not final.is_dir():
            raise NotADirectoryError(f"{final} is in the way")
        final.rename(former)
    try:
        new.rename(final)
    except OSError:
        if former.exists():
            former.rename(final)
        raise
    if former.exists():
        shutil.rmtree(former)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchanges two folders atomically by renameat2(2); whether that was possible."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def plugin_names(folder: ModuleType) -> tuple[str, ...]:
    """The names of a package's modules, in alphabetical order."""
    return tuple(sorted(module.name for module in iter_modules(folder.__path__)))


def plugin(folder: ModuleType, name: str, key: str) -> ModuleType:
    """The module `name` of the package `folder`, so that one can be added as a single file.

    ValueError, which lists the known names, where there is none. `key` is the configuration's key for it.
    """
    full = f"{folder.__name__}.{name}"
    if full not in sys.modules:  # a folder is listed once for each name: some are asked for in every call
        check_plugin(folder, name, key)
    return import_module(full)


def check_plugin(folder: ModuleType, name: str, key: str) -> None:
    """Raises the ValueError of `plugin`, and imports nothing."""
    known = plugin_names(folder)
    if name not in known:
        raise ValueError(f"{key}={name} is not known; choose one of {', '.join(known)}")
