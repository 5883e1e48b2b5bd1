"""Where shipped files are, and files and folders written atomically."""

import ctypes
import os
import shutil
from pathlib import Path

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
