"""An exported shared library in this process."""

import ctypes
import hashlib
import os
import tempfile
import threading
from pathlib import Path

from cudal2.contract import ENTRY, SIZER, Contract
from cudal2.records import HarnessFault
from cudal2.runtime.manifest import Kernel

_LOCK = threading.Lock()
_OPENED: dict[str, ctypes.CDLL] = {}
"""By digest, and for good: nothing unloads a library."""


class Loaded:
    """A kernel bound to its problem's `mnk`; `workspace` is the bytes of scratch memory it wants.

    `function` takes the addresses of A, B and C, then M, N, K, the workspace's address and, of a CUDA kernel,
    the stream. It returns 0 for success. Raises HarnessFault where the library is damaged or foreign.
    """

    def __init__(self, folder: Path, kernel: Kernel, contract: Contract) -> None:
        problem = kernel.problem
        path = folder / kernel.library
        try:
            library = opened(path, kernel.sha256)
            self.function = getattr(library, ENTRY)
        except (OSError, AttributeError) as error:
            raise HarnessFault(f"{path} cannot be loaded: {error}", "Export again on this machine") from error
        self.function.argtypes = [
            ctypes.c_int if role == "size" else ctypes.c_void_p for role, _ in contract.parameters
        ]
        self.mnk = (problem.m, problem.n, problem.k)
        self.workspace = 0
        if hasattr(library, SIZER):
            sizer = getattr(library, SIZER)
            sizer.restype = ctypes.c_size_t
            self.workspace = sizer(*self.mnk)


def opened(path: Path, sha256: str) -> ctypes.CDLL:
    """The shared library whose bytes `path` holds and `sha256` describes; each content is mapped once.

    Raises HarnessFault where the file cannot be read or is another, OSError where it cannot be loaded.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HarnessFault(f"{path} cannot be read: {error}", "Export again") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise HarnessFault(f"{path} is not the library that was exported", "Export again")
    with _LOCK:
        if sha256 not in _OPENED:
            _OPENED[sha256] = _mapped(content)
        return _OPENED[sha256]


def _mapped(content: bytes) -> ctypes.CDLL:
    """These very bytes, from memory of our own: what becomes of the file they were read from is not seen."""
    file = os.memfd_create("hgemm", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(content)
        with tempfile.TemporaryDirectory(prefix="cudal2.") as folder:
            # The loader takes a name it knows for the library that had it, and numbers of descriptors come again.
            name = Path(folder) / "hgemm.so"
            name.symlink_to(f"/proc/self/fd/{file}")
            return ctypes.CDLL(str(name))  # without OpenMP of its own: torch's is loaded, and shared
    finally:
        os.close(file)
