"""An exported shared library in this process."""

import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .held import File, Unusable

_LOCK = threading.Lock()
_OPENED: dict[str, ctypes.CDLL] = {}
"""By digest, and for good: nothing unloads a library."""


def content(folder: Path, file: File) -> bytes:
    """What the file holds. Raises Unusable where it cannot be read or is not what was exported."""
    path = folder / file.path
    try:
        found = path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error}", "Export again") from error
    if hashlib.sha256(found).hexdigest() != file.sha256:
        raise Unusable(f"{path} is not the file that was exported", "Export again")
    return found


def opened(folder: Path, file: File) -> ctypes.CDLL:
    """A shared library of the folder; each content is mapped once.

    Raises Unusable where the file cannot be read or is another, OSError where it cannot be loaded.
    """
    found = content(folder, file)
    with _LOCK:
        if file.sha256 not in _OPENED:
            _OPENED[file.sha256] = _mapped(found)
        return _OPENED[file.sha256]


def address(function: object) -> int:
    """Where a function of a shared library lies."""
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found
    return found


def _mapped(content: bytes) -> ctypes.CDLL:
    """These very bytes, from memory of our own: what becomes of the file they were read from is not seen.

    Raises Unusable where there is no room for the link that they are named by.
    """
    file = os.memfd_create("hgemm", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(content)
        with _link(f"/proc/self/fd/{file}") as name:
            return ctypes.CDLL(name)  # without OpenMP of its own: torch's is loaded, and shared
    finally:
        os.close(file)


@contextmanager
def _link(to: str) -> Iterator[str]:
    """A name for it that was never used: the loader takes a name it knows for the library that had it, and numbers of
    descriptors come again."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="cudal2.")
        name = Path(folder.name) / "hgemm.so"
        name.symlink_to(to)
    except OSError as error:
        raise Unusable(f"no library can be loaded: {error}", "Make room, or point TMPDIR elsewhere") from error
    with folder:
        yield str(name)
