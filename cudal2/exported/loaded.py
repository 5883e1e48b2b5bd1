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
"""Libraries by digest; none is ever unloaded."""


def content(folder: Path, file: File) -> bytes:
    """The bytes of the file. Raises Unusable where it cannot be read or is not the one that was exported."""
    path = folder / file.path
    try:
        found = path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error}", "Export again") from error
    if hashlib.sha256(found).hexdigest() != file.sha256:
        raise Unusable(f"{path} is not the file that was exported", "Export again")
    return found


def opened(folder: Path, file: File) -> ctypes.CDLL:
    """A shared library of the folder; equal files are loaded once.

    Raises Unusable where the file cannot be read or is not the exported one, OSError where it cannot be loaded.
    """
    found = content(folder, file)
    with _LOCK:
        if file.sha256 not in _OPENED:
            _OPENED[file.sha256] = _mapped(found)
        return _OPENED[file.sha256]


def address(function: object) -> int:
    """The address of a function of a shared library."""
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found
    return found


def _mapped(content: bytes) -> ctypes.CDLL:
    """Loads these bytes from memory of our own, so that a later change of the file has no effect.

    Raises Unusable where the temporary link cannot be made.
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
    """A link with a name that was never used. The loader would take a known name for the library that had it, and
    numbers of file descriptors are used again."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="cudal2.")
        name = Path(folder.name) / "hgemm.so"
        name.symlink_to(to)
    except OSError as error:
        raise Unusable(f"no library can be loaded: {error}", "Make room, or point TMPDIR elsewhere") from error
    with folder:
        yield str(name)
